"""Running testbeds: collectives, replays of graphs and programs of ranks on fabrics. Needs root.

Example:
    A fabric with its agents and controllers, and the counters of its NICs::

        with (
            running_testbed(fabric) as (wiring, fleet, controllers),
            port_counters(fabric) as counters,
        ):
            before = counters.read()
            ...
            print(counters.read().payload_since(before)[:, SENT])
"""

from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.ocs import RandomTime
from moefabric.core.port_counts import SENT
from moefabric.core.protocols import PortCounters
from moefabric.emulator.fabric.lifecycle import queues
from moefabric.emulator.ocs.physics import Activation, Settling
from moefabric.execution.executor import Executor, Instruments
from moefabric.execution.programs.program_fabric import ProgramFabric, emulated_programs
from moefabric.execution.programs.rank_jobs import RankJob, RankPlace
from moefabric.execution.programs.rank_processes import RankProcesses
from moefabric.execution.programs.replay import ReplayOptions, ReplayResult, TraceReplay
from moefabric.results.records.queue_readings import uplink_payload
from moefabric.runtime.cpu_monitor import CpuSampler, idle_shares
from moefabric.testbed.testbed import Controllers, port_counters, running_testbed

__all__ = [
    "SENT", "Activation", "Controllers", "CpuSampler", "Executor", "Fleet", "Instruments",
    "PortCounters", "ProgramFabric", "RandomTime", "RankJob", "RankPlace", "RankProcesses",
    "ReplayOptions", "ReplayResult", "Settling", "TraceReplay", "emulated_programs",
    "idle_shares", "port_counters", "queues", "running_testbed", "uplink_payload",
]  # fmt: skip
