"""Programs on a running fabric: connections, circuits, runs, counted bytes and the model."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from moefabric.agents.fleet.channel import connect_local
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.programs import LoadedProgram, ProgramTimes
from moefabric.core.errors import AgentError, ControlError, FabricError
from moefabric.core.port_counts import SENT, counted_nics
from moefabric.core.protocols import PortCounters
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.emulator.fabric import lifecycle, run_directories
from moefabric.execution.programs.placed_programs import (
    Connection,
    MessagePaths,
    PlacedProgram,
    ProgramModel,
    RankPlacement,
)
from moefabric.execution.programs.program_results import ProgramOptions, ProgramResult
from moefabric.execution.programs.rank_requests import program_requests
from moefabric.planner.sending.flow_pacing import merge_circuits
from moefabric.runtime.cpu_monitor import CpuSampler, idle_shares
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed import testbed
from moefabric.testbed.placed_fabric import other_cpu_ticks

_LEAST_SAMPLE_S: Final = 0.05
"""Time between CPU samples, at least: the kernel counts in hundredths of a second."""
_RUN_SLACK_S: Final = 20.0
"""Timeout of a run in addition to ten times its predicted duration."""


@dataclass
class ProgramFabric:
    """A running fabric whose agents run programs.

    Attributes:
        wiring: The fabric as it runs.
        fleet: Its agents.
        counters: Counters of its ports.
    """

    wiring: FabricWiring
    fleet: Fleet
    counters: PortCounters
    _connected: set[Connection] = field(default_factory=set)

    @property
    def fabric(self) -> Fabric:
        """The fabric."""
        return self.wiring.fabric

    def path_choice(
        self,
        placement: RankPlacement,
        options: ProgramOptions,
        place: Callable[[MessagePaths], PlacedProgram],
    ) -> MessagePaths:
        """Return the paths that messages take.

        Args:
            placement: Where ranks are.
            options: The way of the messages, and the policy.
            place: Returns the program of these ranks on some paths; its bytes are the demand.

        Raises:
            ControlError: If the policy or a controller fails.
        """
        eps = MessagePaths(self.fabric, placement)
        if options.via == "eps" or not self.fabric.optical:
            return eps
        with closing(testbed.region_controllers(self.wiring)) as controllers:
            if options.via == "light":
                return MessagePaths(self.fabric, placement, controllers.circuits())
            demand = place(eps).server_demand
            changes = controllers.reconfigure(options.policy, demand, self.fabric).values()
        for error in (change.error for change in changes if change.error):
            raise ControlError(error)
        shares = {
            (share.src, share.dst): share.light_bytes / total
            for change in changes
            for share in change.split or ()
            if (total := share.light_bytes + share.eps_bytes)
        }
        lit = merge_circuits(change.after for change in changes)
        return MessagePaths(self.fabric, placement, lit, shares)

    def run(
        self,
        placed: PlacedProgram,
        runs: int,
        options: ProgramOptions,
        *,
        warm_up: int = 0,
        times: bool = False,
    ) -> ProgramResult:
        """Run a program several times; all ranks start together each time.

        Args:
            runs: Number of runs that are measured.
            options: Whether to verify the last run, and to pace connections.
            warm_up: Number of runs before them.
            times: Whether to report when each step of the last run ended.

        Raises:
            AgentError: If a step fails, or the program needs more memory than is free.
        """
        self._connect(placed)
        model, dilation = ProgramModel(placed, greedy=options.greedy), placed.scale.dilation
        wall_s, paces = model.seconds * dilation, placed.paces(greedy=options.greedy)
        deadline_s = 10 * wall_s + _RUN_SLACK_S
        # Of two samples within a run, at least one is wholly in it.
        every_s = min(max(wall_s / 2, _LEAST_SAMPLE_S), CpuSampler.every_s)
        run_dir = RunDirectory.of_fabric(self.fabric.name)
        cpu = CpuSampler(every_s, partial(other_cpu_ticks, run_dir))
        with LoadedProgram(self.fleet, program_requests(placed, paces)) as loaded:
            for _ in range(warm_up):
                loaded.run(deadline_s, fill=False)
            before = self.counters.read()
            with cpu:
                measured = [loaded.run(deadline_s, fill=False) for _ in range(runs - 1)]
                measured.append(loaded.run(deadline_s, fill=options.verify, times=times))
            payload = self.counters.read().payload_since(before)
            wrong = loaded.verify() if options.verify else None
        optical = np.array([nic.path[0] == "o" for nic in counted_nics(self.fabric)])
        sent = payload[: len(optical), SENT] * placed.scale.bytes
        return ProgramResult(
            tuple(t.seconds / dilation for t in measured),
            model.seconds,
            None if wrong is None else sum(wrong.values()),
            placed.bytes_by_network(),
            (float(sent[optical].sum()), float(sent[~optical].sum())),
            _step_ends_s(placed, measured[-1]) if times else (),
            model.step_ends_s,
            placed.bytes_by_network(framed=True),
            placed.scale.bytes,
            wall_s,
            any(paces.values()),
            idle_shares(cpu.samples, [(t.began_ns, max(t.ended_ns.values())) for t in measured]),
        )

    def _connect(self, placed: PlacedProgram) -> None:
        """Open the connections that are not open yet, and their congestion windows."""
        if missing := sorted(placed.connections.keys() - self._connected):
            paths = [testbed.data_path(self.fabric, *way) for way in missing]
            testbed.connect_agents(self.fabric, self.fleet, paths)
            self._connected |= set(missing)


def _step_ends_s(placed: PlacedProgram, times: ProgramTimes) -> list[list[float]]:
    """Return the ends of a run's steps by rank, in model seconds from the start.

    Agents have a step for each part of a message.
    """
    reported = {server: iter(ends) for server, ends in times.steps_ns.items()}
    ends_s: list[list[float]] = []
    for rank, steps in enumerate(placed.steps):
        ends = reported[placed.server(rank)]
        ends_s.append([])
        for step in steps:
            count = len(placed.parts[step.transfer]) if step.transfer >= 0 else 1
            last_ns = max((end for _, end in islice(ends, count)), default=times.began_ns)
            ends_s[-1].append((last_ns - times.began_ns) / NS_PER_S / placed.scale.dilation)
    return ends_s


@contextmanager
def running_programs(name: str) -> Iterator[ProgramFabric]:
    """Use a fabric that is up; it stays up, and keeps none of the connections.

    Raises:
        FabricError: if the fabric isn't up, or another process uses it.
    """
    run_dir = RunDirectory.of_fabric(name)
    if name not in lifecycle.running_fabrics():
        raise FabricError(f"{name} is not up: start it with `moefabric up FABRIC.yaml`")
    holder = run_directories.holder_pid(run_dir)
    if holder not in {None, os.getpid()}:
        raise FabricError(f"{name}: process {holder} uses it; wait for it, or use another fabric")
    with ExitStack() as undo:
        if holder is None:
            undo.enter_context(run_directories.hold(run_dir))
        wiring = FabricWiring.from_json(run_dir.wiring_file.read_text())
        servers = wiring.fabric.servers
        counters = undo.enter_context(testbed.port_counters(wiring.fabric))
        channels = [connect_local(server, run_dir.agent_socket(server)) for server in servers]
        fleet = undo.enter_context(Fleet(channels))
        undo.callback(_close, fleet)
        yield ProgramFabric(wiring, fleet, counters)


@contextmanager
def emulated_programs(fabric: Fabric) -> Iterator[ProgramFabric]:
    """Bring a fabric up, run programs on it, and take it down.

    Raises:
        FabricError: if the fabric can't be made, or another one has its name.
    """
    with ExitStack() as undo:
        undo.callback(lifecycle.down, fabric.name, force=True)
        testbed.start_fabric(fabric)
        yield undo.enter_context(running_programs(fabric.name))


def _close(fleet: Fleet) -> None:
    """Close the connections of the agents that are left."""
    with suppress(AgentError):
        fleet.request("close")
