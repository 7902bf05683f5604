"""Reads all metrics of running fabrics anew for each scrape."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from moefabric.agents.fleet.agent_statistics import read_statistics
from moefabric.api.lab import Lab
from moefabric.config.run_status import read_run_status
from moefabric.controller.client import ControllerClient
from moefabric.core.errors import ControlError, MoefabricError
from moefabric.core.port_counts import counted_nics
from moefabric.core.topology import Region
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import process_id
from moefabric.emulator.fabric.other_machines import ask_parts
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
from moefabric.emulator.linux.process_usage import ProcessUsage, usage_of
from moefabric.metrics import parts
from moefabric.metrics.metric_set import MetricSet

_REPLY_S = 1.0
"""Time for one controller, and for all agents together."""
_PROCESS_ERRORS = (MoefabricError, OSError, KeyError, ValueError)
"""Errors of parts that end, or restart, during a scrape."""


class FabricCollector(Collector):
    """Metrics of one fabric, or of all that run.

    Args:
        only: Name of the fabric; None for all.
    """

    def __init__(self, only: str | None = None) -> None:
        self._only = only

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration reads no fabric."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Read the fabrics."""
        started_s, metrics = time.perf_counter(), MetricSet()
        running = lifecycle.running_fabrics()
        for name in [self._only] if self._only else running:
            metrics.gauge("fabric_up", "Whether the fabric runs.", name in running, fabric=name)
            if name in running:
                _add_fabric(metrics, Lab(name))
        duration_s = time.perf_counter() - started_s
        metrics.gauge("scrape_seconds", "Time to read all metrics.", duration_s)
        return metrics


def _add_fabric(metrics: MetricSet, lab: Lab) -> None:
    readers: Mapping[str, Callable[[MetricSet, Lab], None]] = {
        "nics": _add_nics,
        "queues": lambda metrics, lab: parts.add_queues(
            metrics, lab.name, lifecycle.queues(lab.name)
        ),
        "ocs": _add_ocs,
        "controllers": _add_controllers,
        "agents": _add_agents,
        "run": lambda metrics, lab: parts.add_run(
            metrics, lab.name, read_run_status(lab.run_directory.run_status_file)
        ),
        "processes": _add_processes,
        "machines": _add_machines,
    }
    for part, read in readers.items():
        try:
            read(metrics, lab)
            success = True
        except _PROCESS_ERRORS:
            success = False
        text = "Whether a part of the fabric could be read."
        metrics.gauge("scrape_success", text, success, fabric=lab.name, part=part)


def _add_nics(metrics: MetricSet, lab: Lab) -> None:
    nics = counted_nics(lab.fabric)
    with closing(EmulatedPortCounters(lab.run_directory, [str(nic) for nic in nics])) as counters:
        parts.add_nics(metrics, lab.name, nics, counters.read())


def _add_ocs(metrics: MetricSet, lab: Lab) -> None:
    for region in lab.fabric.regions:
        if region.ocs is not None:
            parts.add_ocs(metrics, lab.name, region.ocs.name, lab.ocs(region.ocs.name))


def _add_controllers(metrics: MetricSet, lab: Lab) -> None:
    regions: list[Region | None] = [*lab.fabric.regions, *([None] if lab.fabric.leaves else [])]
    for region in regions:
        try:
            with ControllerClient.of_region(lab.wiring, region, _REPLY_S) as client:
                statistics = client.statistics()
        except ControlError:
            statistics = None
        parts.add_controller(metrics, lab.name, region.name if region else "eps", statistics)


def _add_agents(metrics: MetricSet, lab: Lab) -> None:
    paths = {server: lab.run_directory.agent_socket(server) for server in lab.servers}
    statistics = read_statistics(paths, _REPLY_S)
    for server in lab.servers:
        parts.add_agent(metrics, lab.name, server, statistics.get(server))


def _add_processes(metrics: MetricSet, lab: Lab) -> None:
    listed = lifecycle.inspect(lab.name)["processes"]
    pids = {entry["name"]: entry["pid"] for entry in listed if "machine" not in entry}
    pids["fabric"] = process_id(lab.run_directory)
    parts.add_processes(metrics, lab.name, usage_of(pids))
    if lab.run_directory.machines_socket.exists():
        for machine, reply in ask_parts(lab.run_directory, {"do": "usage"}).parts.items():
            usage = {name: ProcessUsage(**used) for name, used in reply["usage"].items()}
            parts.add_processes(metrics, lab.name, usage, machine)


def _add_machines(metrics: MetricSet, lab: Lab) -> None:
    """Add the state of the other machines, and their clocks."""
    if not lab.run_directory.machines_socket.exists():
        return
    replies = ask_parts(lab.run_directory, {"do": "clocks"})
    for machine in dict.fromkeys((*replies.lost, *replies.parts)):
        clock = None if machine in replies.lost else replies.parts[machine]
        parts.add_machine(metrics, lab.name, machine, clock)
