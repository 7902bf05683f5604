"""Collectives of many sizes, measured and reported as nccl-tests does.

Definitions are those of nccl-tests (doc/PERFORMANCE.md): the size S is the larger of a rank's send
and receive buffers, the algorithm bandwidth is S / t, and the bus bandwidth is that times a factor
by which it can be compared with the rate of the hardware. t is the time from the common start of
all ranks to the end of the last one, in model time, as mean of the iterations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Final, Literal, get_args

import numpy as np

from moefabric.config.plugins import SCHEDULES, load_plugin
from moefabric.core.errors import SpecError
from moefabric.execution.programs.placed_programs import (
    MOST_MEMORY,
    MessagePaths,
    PlacedProgram,
    RankPlacement,
    program_scale,
)
from moefabric.execution.programs.program_fabric import ProgramFabric
from moefabric.execution.programs.program_results import JudgedResult, ProgramOptions, ProgramResult
from moefabric.prediction.scaling import shortest_wall_s
from moefabric.results.model import FidelityResult
from moefabric.results.verdict.measurements import Errors
from moefabric.results.verdict.reasons import LabelledError, RunFinding, RunSetting
from moefabric.results.verdict.verdict import error_findings, judge_program, summarise
from moefabric.runtime.cpu_monitor import usable_cores
from moefabric.simulator.fluid import goodput_share
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.costs import bus_factor, port_bytes
from moefabric.workload.collectives.program import Program
from moefabric.workload.collectives.schedule import Call, CollectiveSchedule, schedule_call
from moefabric.workload.graphs.execution_graph import CollectiveKind

PerfKind = Literal[
    "alltoall",
    "alltoallv",
    "allreduce",
    "allgather",
    "reducescatter",
    "broadcast",
    "reduce",
    "sendrecv",
    "barrier",
]
KINDS: Final[tuple[PerfKind, ...]] = get_args(PerfKind)
"""The collectives, by the names of nccl-tests' programs."""
_COLLECTIVES: Final[Mapping[PerfKind, CollectiveKind]] = {
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "all_to_all",
    "barrier": "barrier",
}
ELEMENT: Final = 4
"""Bytes of a number; they are added as uint32, so that every bit can be verified."""


def perf_call(
    kind: PerfKind,
    size: int,
    ranks: int,
    servers: Sequence[int] = (),
    weights: Sequence[Sequence[float]] | None = None,
    root: int = 0,
) -> Call:
    """Return the collective of a size.

    Args:
        kind: The collective.
        size: S in bytes; what is no multiple of the numbers of all ranks is left out.
        ranks: Number of ranks.
        servers: Index of each rank's server.
        weights: Relative bytes of an all-to-all-v from the row's rank to the column's, of which the
            busiest rank sends S. Default: the same skew for each rank, by Zipf's law.
        root: Root of a broadcast or a reduce.
    """
    block = size // (ranks * ELEMENT) * ELEMENT
    sizes: tuple[tuple[int, ...], ...]
    match kind:
        case "alltoall":
            sizes = ((block,) * ranks,) * ranks
        case "alltoallv":
            rows = np.array(zipf_weights(ranks) if weights is None else weights, dtype=float)
            if rows.shape != (ranks, ranks) or rows.min() < 0 or not rows.any():
                fault = f"{ranks} rows of {ranks} numbers are needed, none negative, not all zero"
                raise SpecError([("demand", fault)])
            scaled = rows * (size / ELEMENT / rows.sum(axis=1).max())
            sizes = tuple(tuple(round(x) * ELEMENT for x in row) for row in scaled.tolist())
        case "sendrecv":
            whole = size // ELEMENT * ELEMENT
            sizes = tuple(
                tuple(whole if peer == (rank + 1) % ranks else 0 for peer in range(ranks))
                for rank in range(ranks)
            )
        case "barrier":
            sizes = ((0,),)
        case "allgather":
            sizes = ((block,),)
        case _:
            sizes = ((block * ranks,),)
    return Call(_COLLECTIVES[kind], sizes, ranks, root, ELEMENT, tuple(servers))


def zipf_weights(ranks: int) -> list[list[float]]:
    """Return relative sizes of an all-to-all-v in which every rank sends and receives as much."""
    return [[1 / (1 + (row + column) % ranks) for column in range(ranks)] for row in range(ranks)]


def sizes_between(least: int, most: int, factor: float = 2.0, step: int = 0) -> Iterator[int]:
    """Yield sizes from the least to the largest one, times a factor or plus a step."""
    size = least
    while size <= most:
        yield size
        size = size + step if step else max(size + 1, round(size * factor))


@dataclass(frozen=True)
class PerfRow:
    """Measurement of one size, in model time.

    Attributes:
        size: S in bytes.
        count: Numbers per rank (all-gather, reduce-scatter), per pair (all-to-all) or in all.
        time_us: Mean duration of an iteration.
        algbw_gbs: Algorithm bandwidth in GB/s, 1e9 bytes each.
        busbw_gbs: Bus bandwidth in GB/s.
        wrong: Wrong numbers of all ranks after the last iteration; None if not verified.
        bound_us: Time of the busiest server's bytes over its NICs, whatever the schedule.
        model_us: The event simulation of the same steps on the same paths.
        median_us: Median duration of an iteration.
        min_us: Least duration.
        max_us: Largest duration.
        byte_scale: Bytes of the model for each byte sent.
        dilation: Wall seconds for each second of the model.
        light_share: Part of the bytes between servers that NICs of circuits counted.
    """

    size: int
    count: int
    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: int | None
    bound_us: float
    model_us: float
    median_us: float
    min_us: float
    max_us: float
    byte_scale: float
    dilation: float
    light_share: float

    @property
    def error(self) -> float:
        """Relative difference of the time from the model."""
        return self.time_us / self.model_us - 1 if self.model_us else 0.0


@dataclass(frozen=True)
class PerfResult(JudgedResult):
    """The rows of one collective, and how they were measured."""

    kind: PerfKind
    algorithm: str
    fabric: str
    ranks: int
    servers: int
    via: str
    iterations: int
    warm_up: int
    rows: tuple[PerfRow, ...]

    @property
    def wrong(self) -> int:
        """Wrong numbers of all sizes."""
        return sum(row.wrong or 0 for row in self.rows)

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON."""
        rows = [{**asdict(row), "error": row.error} for row in self.rows]
        return {**self.judged_fields(), "rows": rows, "wrong": self.wrong}


@dataclass(frozen=True)
class PerfOptions(ProgramOptions):
    """Settings of a measurement.

    Attributes:
        kind: The collective.
        sizes: Sizes S in bytes.
        iterations: Iterations that are measured.
        warm_up: Iterations before them.
        algorithm: A schedule: a registered name or `package.module:Name`. None: the default.
        weights: Relative sizes of an all-to-all-v.
        root: Root of a broadcast or a reduce.

    Without `wall_s`, the start of all agents is 2 % of an iteration.
    """

    kind: PerfKind
    sizes: Sequence[int]
    iterations: int = 20
    warm_up: int = 5
    algorithm: str | None = None
    weights: Sequence[Sequence[float]] | None = None
    root: int = 0

    def schedule(self) -> CollectiveSchedule:
        """Return the algorithm."""
        if self.algorithm is None:
            return DEFAULTS[_COLLECTIVES[self.kind]]
        algorithm: CollectiveSchedule = load_plugin(SCHEDULES, self.algorithm, CollectiveSchedule)
        return algorithm


_MOST_RATIO: Final = 10.0
"""Measured over predicted time from which a size shows the start of agents alone."""
_LARGER: Final = "measure larger sizes (-b), as this one lasts less than agents need to start"


def size_findings(size: int, result: ProgramResult) -> Iterator[RunFinding]:
    """Yield the findings on the times of a size."""
    errors = Errors.of(
        LabelledError(f"iteration {number}", seconds / result.predicted_s - 1)
        for number, seconds in enumerate(result.seconds, 1)
    )
    kind, summary = f"{size}-byte", summarise(errors)
    for finding in error_findings(kind, errors, summary, paced=result.paced):
        is_start = median(result.seconds) > _MOST_RATIO * result.predicted_s
        larger = {"remedy": _LARGER, "change": ""}
        yield finding.model_copy(update=larger) if is_start else finding


class Perf:
    """Measures a collective on a running fabric.

    Args:
        options: Settings of a measurement.
    """

    def __init__(self, programs: ProgramFabric, options: PerfOptions) -> None:
        self.programs, self.options = programs, options
        self.fabric = programs.fabric
        self.placement = RankPlacement.spread(self.fabric, options.ranks)
        self.algorithm = options.schedule()
        if not 0 <= options.root < len(self.placement.servers):
            fault = f"{options.root} is not one of {len(self.placement.servers)} ranks"
            raise SpecError([("root", fault)])
        self._findings = list[RunFinding]()
        self._timing = list[RunFinding]()
        self._cpu_idle = list[float]()
        self._wall_s = 0.0
        # Whatever the algorithm can't do is reported before the first size.
        schedule_call(self.algorithm, self.call(ELEMENT * len(self.placement.servers)))

    def rows(self) -> Iterator[PerfRow]:
        """Measure each size, and yield its row."""
        paths: MessagePaths | None = None
        for size in self.options.sizes:
            emulated = self.emulated_size(size)
            if paths is None:
                place = partial(self.placed, emulated, emulated)
                paths = self.programs.path_choice(self.placement, self.options, place)
            placed = self.placed(size, emulated, paths)
            result = self.programs.run(
                placed, self.options.iterations, self.options, warm_up=self.options.warm_up
            )
            self._judge(size, result)
            yield self._row(size, placed, result)

    def result(self, rows: Sequence[PerfRow]) -> PerfResult:
        """Return the result with all of its rows."""
        options = self.options
        return PerfResult(
            options.kind,
            self.algorithm.name,
            self.fabric.name,
            len(self.placement.servers),
            len(set(self.placement.servers)),
            options.via,
            options.iterations,
            options.warm_up,
            tuple(rows),
            fidelity=self.fidelity(),
        )

    def fidelity(self) -> FidelityResult:
        """Return the verdict on the sizes that were measured."""
        setting = RunSetting(option="--seconds", wall_s=self._wall_s)
        timed = self.options.kind != "barrier"  # it moves no bytes
        return judge_program(self._findings, self._timing, self._cpu_idle, setting, timed=timed)

    def _judge(self, size: int, result: ProgramResult) -> None:
        """Keep what is wrong with the runs of a size."""
        self._findings += result.findings()
        self._cpu_idle += result.cpu_idle
        self._wall_s = max(self._wall_s, result.wall_s)
        if result.predicted_s:
            self._timing += size_findings(size, result)

    def bound_s(self, call: Call, factor: float) -> float:
        """Return the time that the busiest server's NICs need at least, in model seconds.

        Args:
            call: The collective.
            factor: Bytes of the model for each of its bytes.
        """
        fabric = self.fabric
        nics = fabric.electrical + (fabric.optical if self.options.via != "eps" else 0)
        fastest_bps = max(map(fabric.rate_bps, self.placement.servers))
        server_bps = nics * fastest_bps * goodput_share(fabric.mtu)
        return 8 * factor * port_bytes(call, self.placement.server_numbers) / server_bps

    def call(self, size: int) -> Call:
        """Return the collective of a size in bytes."""
        options, ranks = self.options, len(self.placement.servers)
        servers = self.placement.server_numbers
        return perf_call(options.kind, size, ranks, servers, options.weights, options.root)

    def emulated_size(self, size: int) -> int:
        """Return the bytes that represent a size: at least those of a measurable duration.

        A fabric's links keep the product of byte scale and dilation; each size has its own share of
        both, so that small sizes are dilated rather than sent in fractions of packets.
        """
        ranks, scale = len(self.placement.servers), self.fabric.scale
        servers = len(set(self.placement.servers))
        wall_s = self.bound_s(self.call(size), 1.0) * scale.bytes * scale.dilation
        least_s = self.options.wall_s or shortest_wall_s(servers, usable_cores())
        factor = max(1.0, wall_s / least_s)
        factor = max(factor, size * 2.0 * ranks / MOST_MEMORY)
        least = ELEMENT * ranks
        return max(least, round(size / factor / least) * least)

    def placed(self, size: int, emulated: int, paths: MessagePaths) -> PlacedProgram:
        """Return the program of a size on its paths."""
        places = paths.rank_places
        call = replace(
            self.call(emulated),
            servers=places.servers,
            circuits=places.circuits,
            eps_ranks=places.eps_ranks,
        )
        program = Program.of_call(call, schedule_call(self.algorithm, call))
        factor = size / emulated if size else 1.0
        return PlacedProgram(program, paths, program_scale(self.fabric.scale, factor))

    def _row(self, size: int, placed: PlacedProgram, result: ProgramResult) -> PerfRow:
        kind, ranks = self.options.kind, len(self.placement.servers)
        call = placed.program.calls[0].call
        mean_s = result.mean_s
        algbw = size / mean_s / 1e9 if mean_s else 0.0
        per_peer = kind in {"alltoall", "alltoallv", "allgather", "reducescatter"}
        light, eps = result.counted_bytes
        return PerfRow(
            size,
            size // ELEMENT // (ranks if per_peer else 1),
            1e6 * mean_s,
            algbw,
            algbw * bus_factor(call),
            result.wrong,
            1e6 * self.bound_s(call, placed.scale.bytes),
            1e6 * result.predicted_s,
            1e6 * median(result.seconds),
            1e6 * min(result.seconds),
            1e6 * max(result.seconds),
            placed.scale.bytes,
            placed.scale.dilation,
            light / (light + eps) if light + eps else 0.0,
        )
