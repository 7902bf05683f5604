"""Layers of HybridEP on a fabric: sent, timed, and counted at NICs and uplinks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from moefabric.api import testbeds
from moefabric.api.plugins import fabric_of
from moefabric_studies.systems.hybrid_ep.graph import HybridEpPass
from moefabric_studies.systems.study import StudyContext

_FIRST_WALL_S = 0.1
"""Wall time of the run that opens connections, before uplinks are counted."""
_WARM_UPS = 1


@dataclass(frozen=True)
class LayerRun:
    """A layer that was sent several times.

    Attributes:
        result: Its times and the bytes at NICs.
        uplink_bytes: Payload that left all data centres in one run, in bytes of the model.
        messages: Messages of one run, by kind of collective.
    """

    layer: HybridEpPass
    result: testbeds.ReplayResult
    uplink_bytes: float
    messages: Mapping[str, int]

    @property
    def seconds(self) -> float:
        """Median of the runs, in model seconds."""
        return median(self.result.seconds)

    @property
    def is_valid(self) -> bool:
        """True if the bytes arrived and were counted where they belong."""
        return self.result.verdict != "invalid"


@dataclass(frozen=True)
class Candidate:
    """A size of domains at each level, and its measured time.

    Attributes:
        domains: Size of a domain at each level.
        run: The layer as it was sent.
        formula_s: The paper's formula.
        expected_bytes: Bytes that all workers send at the outermost level.
    """

    domains: tuple[int, ...]
    run: LayerRun
    formula_s: float
    expected_bytes: float


@dataclass(frozen=True)
class SpeedRow:
    """A layer under plain expert parallelism and under HybridEP.

    Attributes:
        tokens: Tokens of a worker, MB.
        plain: Plain expert parallelism.
        hybrid: HybridEP with the domains that the formula chooses.
        published: The published speed-up.
    """

    tokens: float
    plain: LayerRun
    hybrid: LayerRun
    published: float


class LayerBench:
    """Sends layers over a running fabric.

    Args:
        runs: Runs that are measured.
        wall_s: Wall seconds of a run.
        context: Keeps what has been measured.
    """

    def __init__(
        self, programs: testbeds.ProgramFabric, runs: int, wall_s: float, context: StudyContext
    ) -> None:
        self._programs, self._runs, self._wall_s = programs, runs, wall_s
        self.context = context

    def open_connections(self, layer: HybridEpPass) -> None:
        """Send a layer once, so that its connections are open before anything is counted."""
        self._replay(layer, "", 1, _FIRST_WALL_S).run()

    def run(self, layer: HybridEpPass, name: str, longer: float = 1.0) -> LayerRun:
        """Send a layer, or return the runs of the layer of this name that was sent before.

        Args:
            name: Its name, also in messages, which no other layer of the fabric has.
            longer: Factor by which runs take longer, and messages are larger.
        """
        fabric = self._programs.fabric.name

        def send() -> LayerRun:
            replay = self._replay(layer, name, self._runs, longer * self._wall_s)
            before = testbeds.queues(fabric)
            result = replay.run()
            payload = testbeds.uplink_payload(before, testbeds.queues(fabric))
            crossed = payload * result.byte_scale / (self._runs + _WARM_UPS)
            return LayerRun(layer, result, crossed, _messages(replay))

        return self.context.keep(f"{fabric}: {name}", LayerRun, send)

    def _replay(
        self, layer: HybridEpPass, name: str, runs: int, wall_s: float
    ) -> testbeds.TraceReplay:
        direct = {"all_gather": "direct", "reduce_scatter": "direct"}
        options = testbeds.ReplayOptions(schedules=direct, runs=runs, wall_s=wall_s)
        return testbeds.TraceReplay(self._programs, layer.graph(name), options)


def _messages(replay: testbeds.TraceReplay) -> Counter[str]:
    program = replay.program
    return Counter(
        program.calls[step.call].call.kind
        for rank in range(program.ranks)
        for step in program.steps(rank)
        if step.kind == "send"
    )


@contextmanager
def running_bench(
    document: Mapping[str, Any], runs: int, wall_s: float, context: StudyContext
) -> Iterator[LayerBench]:
    """Bring a fabric up for layers, and take it down."""
    with testbeds.emulated_programs(fabric_of(document).build()) as programs:
        yield LayerBench(programs, runs, wall_s, context)
