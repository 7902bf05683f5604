"""Programs on a running fabric: connections, circuits, runs, counted bytes and the model."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from typing import Final, Literal

import numpy as np

from moefabric.agents.fleet.channel import connect_local
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.programs import LoadedProgram, ProgramTimes
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import AgentError, ControlError, FabricError
from moefabric.core.paths import dscp
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
from moefabric.execution.programs.program_requests import program_requests
from moefabric.planner.sending.flow_pacing import merge_circuits
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed.testbed import (
    connect_agents,
    port_counters,
    region_controllers,
    start_fabric,
)

RUN_SLACK_S: Final = 20.0
"""Timeout of a run in addition to ten times its predicted duration."""


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Settings of programs on a fabric.

    Attributes:
        ranks: Number of ranks; None for as many as there are GPUs, or fewer if the program has.
        via: `eps`, `light` (circuits that are lit, and the EPS for other pairs) or `policy`
            (circuits and split that the policy chooses for the demand).
        policy: The policy of `via="policy"`.
        wall_s: Wall seconds that a run takes, as far as its size allows; None for as many as its
            measurement needs.
        verify: Whether to verify the results of the last run.
        greedy: Whether congestion control alone sets the rates of connections.
    """

    ranks: int | None = None
    via: Literal["eps", "light", "policy"] = "eps"
    policy: str = "mixnet-spill"
    wall_s: float | None = None
    verify: bool = True
    greedy: bool = False


@dataclass(frozen=True)
class ProgramResult:
    """Some runs of a program, with times in model seconds and bytes of the model.

    Attributes:
        seconds: Duration of each run: from the common start to the end of the last rank.
        predicted_s: The model's duration.
        wrong: Wrong numbers of all ranks after the last run; None if not verified.
        planned_bytes: Bytes of one run between servers, by light and by EPS.
        counted_bytes: Payload that optical and electrical NICs sent in all runs together.
        step_ends_s: When each step ended in the last run, by rank; empty unless asked for.
        predicted_step_ends_s: When each step ends in the model, by rank.
    """

    seconds: tuple[float, ...]
    predicted_s: float
    wrong: int | None
    planned_bytes: tuple[float, float]
    counted_bytes: tuple[float, float]
    step_ends_s: Sequence[Sequence[float]] = ()
    predicted_step_ends_s: Sequence[Sequence[float]] = ()

    @property
    def mean_s(self) -> float:
        """Mean duration of the runs."""
        return fmean(self.seconds)


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
        with closing(region_controllers(self.wiring)) as controllers:
            if options.via == "light":
                return MessagePaths(self.fabric, placement, controllers.circuits())
            demand = server_demand(place(eps))
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
        """Run a program some times, each from a common start of all ranks.

        Args:
            placed: The program.
            runs: Number of runs that are measured.
            options: Whether to verify the last run, and to pace connections.
            warm_up: Number of runs before them.
            times: Whether to report when each step of the last run ended.

        Raises:
            AgentError: If a step fails, or the program needs more memory than is free.
        """
        self.connect(placed.connections)
        model, dilation = ProgramModel(placed, greedy=options.greedy), placed.scale.dilation
        deadline_s = 10 * model.seconds * dilation + RUN_SLACK_S
        measured: list[ProgramTimes] = []
        requests = program_requests(placed, placed.paces(greedy=options.greedy))
        with LoadedProgram(self.fleet, requests) as loaded:
            for _ in range(warm_up):
                loaded.run(deadline_s, fill=False)
            before = self.counters.read()
            for number in range(runs):
                last = number == runs - 1
                measured.append(
                    loaded.run(deadline_s, fill=options.verify and last, times=times and last)
                )
            after = self.counters.read()
            wrong = loaded.verify() if options.verify else None
        sent = after.payload_since(before)[:, SENT] * placed.scale.bytes
        optical = np.array([nic.path[0] == "o" for nic in counted_nics(self.fabric)])
        return ProgramResult(
            tuple(t.seconds / dilation for t in measured),
            model.seconds,
            None if wrong is None else sum(wrong.values()),
            _planned_bytes(placed),
            (float(sent[optical].sum()), float(sent[~optical].sum())),
            _step_ends_s(placed, measured[-1]) if times else (),
            model.step_ends_s,
        )

    def connect(self, connections: Mapping[Connection, int] | Sequence[Connection]) -> None:
        """Open the connections that are not open yet, and their congestion windows."""
        missing = sorted(set(connections) - self._connected)
        if not missing:
            return
        fabric = self.fabric
        paths = [
            DataPath(src, dst, path, fabric.addressing.addresses(dst)[0], dscp(fabric, path))
            for src, dst, path in missing
        ]
        connect_agents(fabric, self.fleet, paths)
        self._connected |= set(missing)


def server_demand(placed: PlacedProgram) -> DemandMatrix:
    """Return the bytes that a program moves between servers, in the model."""
    servers = placed.fabric.servers
    index = placed.fabric.server_index
    demand = np.zeros((len(servers), len(servers)))
    for transfer, (source, target) in placed.ends.items():
        src, dst = placed.placement.servers[source], placed.placement.servers[target]
        if src != dst:
            size = sum(part.size for part in placed.parts[transfer])
            demand[index[src], index[dst]] += size * placed.scale.bytes
    return DemandMatrix(servers, demand)


def _step_ends_s(placed: PlacedProgram, times: ProgramTimes) -> list[list[float]]:
    """Return when each step of a run ended, by rank, in model seconds from the start.

    Agents have a step for each part of a message.
    """
    reported = {server: iter(own) for server, own in times.steps_ns.items()}
    ends_s: list[list[float]] = []
    for rank, steps in enumerate(placed.steps):
        own = reported[placed.server(rank)]
        ends_s.append([])
        for step in steps:
            count = len(placed.parts[step.transfer]) if step.transfer >= 0 else 1
            last_ns = max((end for _, end in islice(own, count)), default=times.began_ns)
            ends_s[-1].append((last_ns - times.began_ns) / NS_PER_S / placed.scale.dilation)
    return ends_s


def _planned_bytes(placed: PlacedProgram) -> tuple[float, float]:
    light = sum(size for (_, _, path), size in placed.connections.items() if path[0] == "o")
    total = sum(placed.connections.values())
    return light * placed.scale.bytes, (total - light) * placed.scale.bytes


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
        counters = undo.enter_context(port_counters(wiring.fabric))
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
        start_fabric(fabric)
        yield undo.enter_context(running_programs(fabric.name))


def _close(fleet: Fleet) -> None:
    """Close the connections of the agents that are left."""
    with suppress(AgentError):
        fleet.request("close")
