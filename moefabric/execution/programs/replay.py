"""Replays of execution graphs on a running fabric: real bytes beside the event simulation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Final

from moefabric.config.plugins import SCHEDULES, load_plugin
from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.execution.programs.placed_programs import (
    MOST_MEMORY,
    MessagePaths,
    PlacedProgram,
    ProgramModel,
    RankPlacement,
    program_scale,
)
from moefabric.execution.programs.program_fabric import ProgramFabric
from moefabric.execution.programs.program_results import JudgedResult, ProgramOptions, ProgramResult
from moefabric.results.model import FidelityResult
from moefabric.results.verdict import reasons
from moefabric.results.verdict.reasons import RunSetting
from moefabric.results.verdict.verdict import judge_program
from moefabric.traces.summary import NOTHING_SENT, sends_bytes
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.program import NO_CALL, Program, lower
from moefabric.workload.collectives.schedule import CollectiveSchedule
from moefabric.workload.graphs.execution_graph import COLLECTIVES, CollectiveKind, ExecutionGraph
from moefabric.workload.graphs.folding import fold, leading_operations, scaled

MOST_STEPS: Final = 400_000
"""Steps of all ranks together that agents can load in reasonable time."""
STEP_WALL_S: Final = 1e-2
"""Wall time of a step on average, so that the agents' own time is small beside it."""
SHORTEST_WALL_S: Final = 5.0
LONGEST_WALL_S: Final = 60.0
"""Wall time of a run, unless it is given."""


@dataclass(frozen=True)
class ReplayOptions(ProgramOptions):
    """Settings of a replay.

    A policy chooses circuits for the bytes of the whole trace. Without `ranks`, the trace is folded
    onto as many as fit; without `wall_s`, a run takes as long as its number of steps needs.

    Attributes:
        operations: Replays the first operations of each rank only.
        schedules: Algorithms by collective: registered names or `package.module:Name`.
        runs: Number of runs.
    """

    operations: int | None = None
    schedules: Mapping[str, str] = field(default_factory=dict)
    runs: int = 3

    def algorithms(self) -> dict[CollectiveKind, CollectiveSchedule]:
        """Return the algorithm of each collective.

        Raises:
            SpecError: If a collective or an algorithm is unknown, or they don't suit each other.
        """
        chosen = dict(DEFAULTS)
        for kind, name in self.schedules.items():
            matching = [known for known in COLLECTIVES if known == kind]
            if not matching:
                fault = f"{kind!r} is not one of {', '.join(COLLECTIVES)}"
                raise SpecError([("schedule", fault)])
            algorithm: CollectiveSchedule = load_plugin(SCHEDULES, name, CollectiveSchedule)
            if kind not in algorithm.kinds:
                raise SpecError([("schedule", f"{name} has no {kind}")])
            chosen[matching[0]] = algorithm
        return chosen


@dataclass(frozen=True)
class OperationTimes:
    """Durations of the operations of one kind, in model seconds.

    An operation lasts from when the first of its ranks could start it to its end on the last one.

    Attributes:
        kind: A collective, `message` or `compute`.
        count: Number of operations.
        bytes: Bytes that ranks send in them, in the model.
        measured_s: Their mean duration in the last run.
        model_s: Their mean duration in the event simulation.
        error: Error of the mean duration, signed.
        error_p50: Median error of their durations, signed.
    """

    kind: str
    count: int
    bytes: float
    measured_s: float
    model_s: float
    error: float
    error_p50: float


@dataclass(frozen=True)
class ReplayResult(JudgedResult):
    """A replay, in model seconds and bytes.

    Attributes:
        trace: Name of the trace.
        fabric: Name of the fabric.
        ranks: Ranks that were replayed.
        servers: Servers that have them.
        via: As in the options.
        seconds: Duration of each run.
        model_s: Duration in the event simulation.
        exact_s: Duration there with sizes that are not rounded to the scale.
        operations: Durations by kind.
        bytes_by_light: Bytes of one run that optical NICs sent, counted at ports.
        bytes_by_eps: Bytes of one run that electrical NICs sent, counted at ports.
        bytes_planned_by_light: Bytes of one run that the plan has on optical NICs.
        wrong: Wrong numbers after the last run; None if they were not verified.
        byte_scale: Bytes of the model for each byte that was sent.
        dilation: Wall seconds for each model second.
        notes: What was folded, left out or assumed.
    """

    trace: str
    fabric: str
    ranks: int
    servers: int
    via: str
    seconds: tuple[float, ...]
    model_s: float
    exact_s: float
    operations: tuple[OperationTimes, ...]
    bytes_by_light: float
    bytes_by_eps: float
    bytes_planned_by_light: float
    wrong: int | None
    byte_scale: float
    dilation: float
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Error of the median duration against the event simulation, signed."""
        return median(self.seconds) / self.model_s - 1 if self.model_s else 0.0

    def to_json(self) -> dict[str, object]:
        """Return the fields for JSON."""
        operations = [asdict(row) for row in self.operations]
        return {**self.judged_fields(), "operations": operations, "error": self.error}


def replayed_operations(graph: ExecutionGraph, count: int | None = None) -> ExecutionGraph:
    """Return the first operations of each rank of a trace, or all of them.

    Raises:
        SpecError: If nothing of them is sent.
    """
    chosen = graph if count is None else leading_operations(graph, count)
    if not sends_bytes(chosen):
        raise SpecError([(graph.name or "trace", NOTHING_SENT)])
    return chosen


class TraceReplay:
    """Trace placed on a fabric as a program of its ranks.

    Args:
        programs: The running fabric.
        graph: The trace.
        options: How to replay it.

    Raises:
        SpecError: If the trace can't be folded onto the fabric, or is too large.
    """

    def __init__(
        self, programs: ProgramFabric, graph: ExecutionGraph, options: ReplayOptions
    ) -> None:
        self.programs, self.options = programs, options
        fabric = programs.fabric
        graph = replayed_operations(graph, options.operations)
        gpus = len(fabric.primary_servers) * fabric.gpus
        ranks = min(len(graph.ranks), gpus) if options.ranks is None else options.ranks
        self.placement = RankPlacement.spread(fabric, ranks)
        self.graph = fold(graph, ranks)
        self.algorithms = options.algorithms()
        self.paths = MessagePaths(fabric, self.placement)
        self.program = self._lowered(1.0)
        steps = sum(sum(1 for _ in self.program.steps(rank)) for rank in range(ranks))
        if steps > MOST_STEPS:
            fault = (
                f"{steps} steps are more than {MOST_STEPS}: replay fewer ranks, or the first "
                "operations only"
            )
            raise SpecError([(self.graph.name or "trace", fault)])
        self.steps_of_rank = steps / ranks
        if options.via != "eps":
            self.paths = programs.path_choice(self.placement, options, self._unscaled)
            self.program = self._lowered(1.0)

    def run(self) -> ReplayResult:
        """Replay the trace and return its times."""
        scale = self.programs.fabric.scale
        exact = self._unscaled(self.paths)
        exact_s = ProgramModel(exact, greedy=self.options.greedy).seconds
        # The byte scale at which a run takes long enough; below 1, sizes grow.
        factor = exact_s * scale.bytes * scale.dilation / self._planned_wall_s()
        factor = max(factor, exact.memory / MOST_MEMORY)
        program = self._lowered(factor)
        placed = PlacedProgram(program, self.paths, program_scale(scale, factor))
        options = self.options
        result = self.programs.run(placed, options.runs, options, warm_up=1, times=True)
        light, eps = (size / options.runs for size in result.counted_bytes)
        return ReplayResult(
            self.graph.name,
            self.programs.fabric.name,
            len(self.placement.servers),
            len(set(self.placement.servers)),
            options.via,
            result.seconds,
            result.predicted_s,
            exact_s,
            tuple(operation_times(placed, result)),
            light,
            eps,
            result.planned_bytes[0],
            result.wrong,
            placed.scale.bytes,
            placed.scale.dilation,
            (*program.notes, *self._memory_notes(placed, exact_s)),
            fidelity=replay_fidelity(result),
        )

    def _lowered(self, factor: float) -> Program:
        return lower(scaled(self.graph, factor), self.algorithms, self.paths.rank_places)

    def _unscaled(self, paths: MessagePaths) -> PlacedProgram:
        return PlacedProgram(self.program, paths, Scale())

    def _planned_wall_s(self) -> float:
        if self.options.wall_s is not None:
            return self.options.wall_s
        return min(max(SHORTEST_WALL_S, self.steps_of_rank * STEP_WALL_S), LONGEST_WALL_S)

    def _memory_notes(self, placed: PlacedProgram, exact_s: float) -> list[str]:
        """Return a note if buffers would be too large for a run that takes as long as it should."""
        wall_s, planned_s = exact_s * placed.scale.dilation, self._planned_wall_s()
        if wall_s > 0.9 * planned_s:
            return []
        limit = f"{MOST_MEMORY / 1e9:g} GB of buffers"
        return [f"A run takes {wall_s:.1f} s instead of {planned_s:.1f} s, because of {limit}."]


def replay_fidelity(result: ProgramResult) -> FidelityResult:
    """Return the verdict on the runs of a replay."""
    error = median(result.seconds) / result.predicted_s - 1 if result.predicted_s else 0.0
    timing = [*reasons.REPLAY_ERROR.judge(abs(error), error=error)]
    setting = RunSetting(option="--wall", wall_s=result.wall_s)
    return judge_program([*result.findings()], timing, result.cpu_idle, setting)


def operation_times(placed: PlacedProgram, result: ProgramResult) -> list[OperationTimes]:
    """Return durations by kind of operation, of the last run and of the event simulation."""
    measured = operation_spans(placed, result.step_ends_s)
    simulated = operation_spans(placed, result.predicted_step_ends_s)
    by_kind: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    sizes: defaultdict[str, float] = defaultdict(float)
    for key, (start_s, end_s) in measured.items():
        model_start_s, model_end_s = simulated[key]
        durations = end_s - start_s, model_end_s - model_start_s
        by_kind[_kind(placed.program, key)].append(durations)
    for transfer, call in placed.call_of_transfer.items():
        size = sum(part.size for part in placed.parts[transfer])
        sizes[_kind(placed.program, (-1, call))] += size * placed.scale.bytes
    times = []
    for kind, pairs in sorted(by_kind.items()):
        measured_s, model_s = (fmean(column) for column in zip(*pairs, strict=True))
        error = measured_s / model_s - 1 if model_s else 0.0
        error_p50 = median([duration / model - 1 for duration, model in pairs if model] or [0.0])
        counted = kind, len(pairs), sizes[kind]
        times.append(OperationTimes(*counted, measured_s, model_s, error, error_p50))
    return times


OperationKey = tuple[int, int]
"""(-1, position of a call), or (rank, position of a computation)."""


def _kind(program: Program, key: OperationKey) -> str:
    if key[0] >= 0:
        return "compute"
    call = program.calls[key[1]]
    return "message" if call.schedule.name == "message" else call.call.kind


def operation_spans(
    placed: PlacedProgram, step_ends_s: Sequence[Sequence[float]]
) -> dict[OperationKey, tuple[float, float]]:
    """Return when each operation could start and when it ended.

    An operation could start when, on the first of its ranks, those that it waits for have ended.
    Only ends of steps are needed, which a run and the event simulation define alike.

    Args:
        step_ends_s: When each step ended, by rank.
    """
    spans: dict[OperationKey, tuple[float, float]] = {}
    for rank, operations in enumerate(placed.program.operations):
        ends_s = [0.0] * len(operations)
        for step, end_s in zip(placed.steps[rank], step_ends_s[rank], strict=True):
            ends_s[step.operation] = max(ends_s[step.operation], end_s)
        for position, operation in enumerate(operations):
            ready_s = max((ends_s[other] for other in operation.after), default=0.0)
            ends_s[position] = max(ends_s[position], ready_s)
            if operation.call == NO_CALL and not operation.duration_s:
                continue
            key = (rank, position) if operation.call == NO_CALL else (-1, operation.call)
            start_s, end_s = spans.get(key, (ready_s, ends_s[position]))
            spans[key] = min(start_s, ready_s), max(end_s, ends_s[position])
    return spans
