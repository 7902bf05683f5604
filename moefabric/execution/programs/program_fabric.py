"""Programs on a running fabric: connections, circuits, requests, runs, counted bytes and the model.

Agents load buffers, inputs, expected results and steps of each rank.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from functools import partial
from itertools import islice
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np

from moefabric.agents.fleet.channel import connect_local
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.programs import LoadedProgram, ProgramTimes
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import AgentError, ControlError, FabricError
from moefabric.core.port_counts import GRANT_BYTES, SENT, counted_nics, framed_bytes
from moefabric.core.protocols import PortCounters
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.emulator.fabric import lifecycle, run_directories
from moefabric.execution.programs.placed_programs import (
    Connection,
    MessagePaths,
    Part,
    PlacedProgram,
    ProgramModel,
    RankPlacement,
)
from moefabric.planner.sending.flow_pacing import merge_circuits
from moefabric.results.model import FidelityResult, Verdict
from moefabric.results.verdict import reasons
from moefabric.results.verdict.reasons import RunFinding
from moefabric.runtime.cpu_monitor import CpuSampler, idle_shares
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed import testbed
from moefabric.testbed.placed_fabric import other_cpu_ticks
from moefabric.workload.collectives.program import DEFAULT_NVSWITCH_BPS, ProgramStep
from moefabric.workload.collectives.schedule import (
    REDUCTIONS,
    BufferName,
    Call,
    Extent,
    buffer_sizes,
)

Json = dict[str, Any]
Terms = list[tuple[int, int]]
"""Ranks whose patterns are added, each with an offset in its pattern."""

_STRIDE: Final = 7919
"""Distance of the seeds of two ranks: a prime, so that their patterns have little in common."""
BYTES_LIMIT: Final = 0.02
"""Part of a program's bytes that may be counted elsewhere than planned."""
_PASSED: Final = FidelityResult(verdict=Verdict.PASS)
_LEAST_SAMPLE_S: Final = 0.05
"""Time between CPU samples, at least: the kernel counts in hundredths of a second."""
RUN_SLACK_S: Final = 20.0
"""Timeout of a run in addition to ten times its predicted duration."""


def program_requests(
    placed: PlacedProgram, paces: Mapping[Connection, float | None]
) -> dict[str, list[Json]]:
    """Return the ranks of each server, as its agent loads them.

    Args:
        paces: Pace of each connection in wall bits per second; None for unlimited.
    """
    by_server: dict[str, list[Json]] = {}
    for rank in range(placed.program.ranks):
        request = _RankRequest(placed, rank, paces).request()
        by_server.setdefault(placed.server(rank), []).append(request)
    return by_server


class _RankRequest:
    """The request of one rank.

    Attributes:
        buffers: Number of each buffer that a call has on this rank.
    """

    def __init__(
        self, placed: PlacedProgram, rank: int, paces: Mapping[Connection, float | None]
    ) -> None:
        self.placed, self.rank, self.paces = placed, rank, paces
        self.calls = [
            (number, call, call.ranks.index(rank))
            for number, call in enumerate(placed.program.calls)
            if rank in call.ranks
        ]
        sizes = {
            (number, name): size
            for number, call, index in self.calls
            for name, size in call.schedule.buffers[index].items()
        }
        self.buffers = {buffer: position for position, buffer in enumerate(sizes)}
        self.sizes = list(sizes.values())

    def request(self) -> Json:
        """Return the request."""
        return {
            "rank": self.rank,
            "buffers": self.sizes,
            "inputs": list(self._contents(call_inputs)),
            "expected": list(self._contents(call_results)),
            "steps": self._steps(),
        }

    def _contents(
        self, contents: Callable[[Call, int], Iterator[tuple[Extent, Terms]]]
    ) -> Iterator[Json]:
        """Yield the ranges of bytes that are filled or compared."""
        for number, call, index in self.calls:
            for extent, terms in contents(call.call, index):
                if extent.size:
                    yield {
                        "buffer": self.buffers[number, extent.buffer],
                        "offset": extent.offset,
                        "bytes": extent.size,
                        "element": call.call.element,
                        "terms": [[number + rank * _STRIDE, at] for rank, at in terms],
                    }

    def _steps(self) -> list[Json]:
        """Return the steps; a message has one for each of its parts."""
        placed = self.placed
        steps: list[Json] = []
        positions: list[range] = []
        for step in placed.steps[self.rank]:
            first = len(steps)
            after = [position for other in step.after for position in positions[other]]
            common: Json = {"kind": step.kind, "after": after}
            if step.extent is None:
                wall_ns = round(step.duration_s * placed.scale.dilation * NS_PER_S)
                steps.append({**common, "wall_ns": wall_ns})
            elif step.source is not None:
                places = self._place(step, step.extent) | self._place(step, step.source, "source_")
                steps.append({**common, **places, "bytes": step.extent.size})
            else:
                common |= self._place(step, step.extent)
                common["element"] = placed.program.calls[step.call].call.element
                common["peer"] = placed.server(step.peer)
                common["granted"] = step.transfer in placed.early
                parts = placed.parts[step.transfer]
                steps += [{**common, **self._part(step, step.extent, part)} for part in parts]
            positions.append(range(first, len(steps)))
        return steps

    def _place(self, step: ProgramStep, extent: Extent, prefix: str = "") -> Json:
        number = self.buffers[step.call, extent.buffer]
        return {f"{prefix}buffer": number, f"{prefix}offset": extent.offset}

    def _part(self, step: ProgramStep, extent: Extent, part: Part) -> Json:
        placed = self.placed
        fields: Json = {
            "message": part.number,
            "offset": extent.offset + part.offset,
            "bytes": part.size,
            "path": part.path,
        }
        if step.kind == "send" and part.path:
            ends = placed.server(self.rank), placed.server(step.peer)
            fields["rate_bps"] = self.paces.get((*ends, part.path))
        elif step.kind == "send":
            seconds = 8 * part.size * placed.scale.bytes / DEFAULT_NVSWITCH_BPS
            fields["wall_ns"] = round(seconds * placed.scale.dilation * NS_PER_S)
        return fields


def call_inputs(call: Call, rank: int) -> Iterator[tuple[Extent, Terms]]:
    """Yield the contents of a rank's buffers before a collective."""
    match call.kind:
        case "all_to_all" | "gather":
            yield Extent("input", 0, buffer_sizes(call, rank).get("input", 0)), [(rank, 0)]
        case "all_gather":
            yield call.shard(rank), [(rank, call.shard(rank).offset)]
        case "broadcast" | "scatter" if rank == call.root:
            name: BufferName = "output" if call.kind == "broadcast" else "input"
            yield Extent(name, 0, call.size), [(rank, 0)]
        case kind if kind in REDUCTIONS:
            yield Extent("output", 0, call.size), [(rank, 0)]


def call_results(call: Call, rank: int) -> Iterator[tuple[Extent, Terms]]:
    """Yield the contents of a rank's buffers after a collective, by its definition."""
    ranks = range(call.ranks)
    match call.kind:
        case "all_to_all":
            for source in ranks:
                sent = call.input_part(source, rank)
                yield call.output_part(rank, source), [(source, sent.offset)]
        case "all_gather":
            for shard in map(call.shard, ranks):
                yield shard, [(shard.offset // max(1, call.size), shard.offset)]
        case "gather" if rank == call.root:
            for source in ranks:
                yield Extent("output", source * call.size, call.size), [(source, 0)]
        case "scatter":
            shard = call.shard(rank)
            yield Extent("output", 0, shard.size), [(call.root, shard.offset)]
        case "broadcast":
            yield Extent("output", 0, call.size), [(call.root, 0)]
        case "reduce_scatter":
            shard = call.shard(rank)
            yield shard, [(other, shard.offset) for other in ranks]
        case "all_reduce":
            yield Extent("output", 0, call.size), [(other, 0) for other in ranks]
        case "reduce" if rank == call.root:
            yield Extent("output", 0, call.size), [(other, 0) for other in ranks]


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
    """Runs of a program, with times in model seconds and bytes of the model.

    Attributes:
        seconds: Duration of each run: from the common start to the end of the last rank.
        predicted_s: The model's duration.
        wrong: Wrong numbers of all ranks after the last run; None if not verified.
        planned_bytes: Bytes of one run between servers, by light and by EPS.
        counted_bytes: Payload that optical and electrical NICs sent in all runs together.
        step_ends_s: When each step ended in the last run, by rank; empty unless asked for.
        predicted_step_ends_s: When each step ends in the model, by rank.
        framed_bytes: As `planned_bytes`, with the frames of the messages on their connections.
        byte_scale: Bytes of the model for each byte that was sent.
        wall_s: Wall seconds that a run takes in the model.
        paced: Whether connections were paced.
        cpu_idle: Idle shares of the machine during the runs.
    """

    seconds: tuple[float, ...]
    predicted_s: float
    wrong: int | None
    planned_bytes: tuple[float, float]
    counted_bytes: tuple[float, float]
    step_ends_s: Sequence[Sequence[float]] = ()
    predicted_step_ends_s: Sequence[Sequence[float]] = ()
    framed_bytes: tuple[float, float] = (0.0, 0.0)
    byte_scale: float = 1.0
    wall_s: float = 0.0
    paced: bool = False
    cpu_idle: Sequence[float] = ()

    @property
    def mean_s(self) -> float:
        """Mean duration of the runs."""
        return fmean(self.seconds)

    def findings(self) -> Iterator[RunFinding]:
        """Yield the findings on results and bytes."""
        yield from reasons.WRONG_NUMBERS.judge(self.wrong or 0)
        least = max(BYTES_LIMIT * sum(self.framed_bytes), 1e5 * self.byte_scale)
        for place, planned, total in zip(
            ("light", "the EPS"), self.framed_bytes, self.counted_bytes, strict=True
        ):
            counted = total / len(self.seconds)
            if abs(counted - planned) > least:
                yield from reasons.OTHER_BYTES.judge(place=place, counted=counted, planned=planned)


@dataclass(frozen=True, kw_only=True)
class JudgedResult:
    """A result with a verdict, such as `pass`, and its reasons."""

    fidelity: FidelityResult = _PASSED

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.fidelity.verdict

    @property
    def reasons(self) -> Sequence[str]:
        """Why it isn't `pass`."""
        return self.fidelity.reasons

    def judged_fields(self) -> dict[str, Any]:
        """Return the fields and the verdict for JSON."""
        fields = {one.name: getattr(self, one.name) for one in dataclass_fields(self)}
        judgement = {"verdict", "reasons", "findings", "cpu_idle_min"}
        del fields["fidelity"]
        return {**fields, **self.fidelity.model_dump(mode="json", include=judgement)}


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
        """Run a program several times; all ranks start together each time.

        Args:
            runs: Number of runs that are measured.
            options: Whether to verify the last run, and to pace connections.
            warm_up: Number of runs before them.
            times: Whether to report when each step of the last run ended.

        Raises:
            AgentError: If a step fails, or the program needs more memory than is free.
        """
        self.connect(placed.connections)
        model, dilation = ProgramModel(placed, greedy=options.greedy), placed.scale.dilation
        wall_s = model.seconds * dilation
        deadline_s = 10 * wall_s + RUN_SLACK_S
        measured: list[ProgramTimes] = []
        paces = placed.paces(greedy=options.greedy)
        requests = program_requests(placed, paces)
        run_dir = RunDirectory.of_fabric(self.fabric.name)
        # Of two samples within a run, at least one is wholly in it.
        every_s = min(max(wall_s / 2, _LEAST_SAMPLE_S), CpuSampler.every_s)
        cpu = CpuSampler(every_s, partial(other_cpu_ticks, run_dir))
        with LoadedProgram(self.fleet, requests) as loaded:
            for _ in range(warm_up):
                loaded.run(deadline_s, fill=False)
            before = self.counters.read()
            with cpu:
                for number in range(runs):
                    last = number == runs - 1
                    measured.append(
                        loaded.run(deadline_s, fill=options.verify and last, times=times and last)
                    )
            after = self.counters.read()
            wrong = loaded.verify() if options.verify else None
        optical = np.array([nic.path[0] == "o" for nic in counted_nics(self.fabric)])
        sent = after.payload_since(before)[: len(optical), SENT] * placed.scale.bytes
        return ProgramResult(
            tuple(t.seconds / dilation for t in measured),
            model.seconds,
            None if wrong is None else sum(wrong.values()),
            _planned_bytes(placed),
            (float(sent[optical].sum()), float(sent[~optical].sum())),
            _step_ends_s(placed, measured[-1]) if times else (),
            model.step_ends_s,
            _planned_bytes(placed, framed=True),
            placed.scale.bytes,
            wall_s,
            any(paces.values()),
            idle_shares(cpu.samples, [(t.began_ns, max(t.ended_ns.values())) for t in measured]),
        )

    def connect(self, connections: Mapping[Connection, int] | Sequence[Connection]) -> None:
        """Open the connections that are not open yet, and their congestion windows."""
        missing = sorted(set(connections) - self._connected)
        if not missing:
            return
        fabric = self.fabric
        paths = [testbed.data_path(fabric, *way) for way in missing]
        testbed.connect_agents(fabric, self.fleet, paths)
        self._connected |= set(missing)


def server_demand(placed: PlacedProgram) -> DemandMatrix:
    """Return the bytes that a program moves between servers, in the model."""
    scale, sizes = placed.scale.bytes, placed.connections.items()
    pairs = ((src, dst, size * scale) for (src, dst, _), size in sizes)
    return DemandMatrix.of_pairs(placed.fabric.servers, pairs)


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


def _planned_bytes(placed: PlacedProgram, *, framed: bool = False) -> tuple[float, float]:
    """Return the bytes between servers by light and by the EPS, in the model.

    Args:
        framed: Whether to count the frames of messages and of their grants, which return.
    """
    sizes = Counter[str]()
    for transfer, parts in placed.parts.items():
        grant = framed and transfer not in placed.early
        for part in parts:
            size = framed_bytes(part.size) if framed else part.size
            sizes[part.path[:1]] += size + GRANT_BYTES * grant
    return sizes["o"] * placed.scale.bytes, sizes["e"] * placed.scale.bytes


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
