"""All-to-alls of a training program in memory: its gates decide, and tasks carry its bytes."""

from collections import defaultdict

import numpy as np
import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import RanksLostError, TrainingProgramError
from moefabric.core.exchange import Exchange
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.execution.rank_calls import (
    Calls,
    RankCalls,
    TrainingTasks,
    gate_tokens,
    iteration_calls,
)
from moefabric.planner.mixnet import SPILL
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import training_workload, workload_of, workload_on
from moefabric.results.records.records import IterationRun
from moefabric.workload.gating.job_gating import RecordedGating
from moefabric.workload.iterations.iteration import Collective
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    VirtualClock,
    VirtualTimeExecutor,
    instruments_in_memory,
)
from tests.support.paths import EXAMPLES

MS = 1_000_000
LAYERS, ITERATIONS, RANKS, TOKENS, TOKEN_BYTES = 2, 3, 8, 64, 512
PER_ITERATION = 4 * LAYERS


def gate(iteration: int, layer: int) -> np.ndarray:
    """Tokens [rank, rank] that differ from layer to layer and iteration to iteration."""
    shares = np.random.default_rng([iteration, layer]).dirichlet(np.ones(RANKS), RANKS)
    tokens = np.floor(shares * 2 * TOKENS).astype(int)
    tokens[:, 0] += 2 * TOKENS - tokens.sum(axis=1)
    return tokens


class Program:
    """Eight ranks on four servers that make the calls of a training program, `late_ns` after each.

    `wrong` is the number of a call whose bytes are not those of its layer.
    """

    def __init__(
        self, agents: MemoryAgents, clock: VirtualClock, late_ns: int = 0, wrong: int = -1
    ) -> None:
        self.agents, self.clock, self.late_ns, self.wrong = agents, clock, late_ns, wrong
        self.made, self.errors = 0, list[str]()
        agents.on_finish = self._finished

    def call(self) -> None:
        iteration, position = divmod(self.made, PER_ITERATION)
        call = iteration_calls(LAYERS)[position]
        tokens = gate(iteration, call.layer)
        sends = (tokens if call.goes_to_experts else tokens.T) * TOKEN_BYTES
        if self.made == self.wrong:
            sends = sends[::-1]
        self.made += 1
        rows = tuple(tuple(map(int, row)) for row in sends)
        servers = tuple(f"s{rank // 2}" for rank in range(RANKS))
        asked = (self.clock.now_ns(),) * RANKS
        ranks = tuple(range(RANKS))
        self.agents.ask(Exchange(ranks, self.made - 1, servers, rows, "float32", asked_ns=asked))

    def _finished(self, _exchange: Exchange, error: str) -> None:
        self.errors += [error] if error else []
        if self.made < ITERATIONS * PER_ITERATION:
            self.clock.at(self.clock.now_ns() + self.late_ns, self.call)


class Bench:
    """A training program on four servers of three optical and one electrical NIC."""

    def __init__(
        self, light: str = "block", *, late_ms: int = 0, wrong: int = -1, wall: bool = False
    ) -> None:
        settings = [f"model.layers={LAYERS}", f"training.iterations={ITERATIONS}"]
        spec = load_experiment(EXAMPLES / "prototype.yaml", settings)
        choice = spec.fabrics[2].model_copy(update={"dispatch_light": light})
        even = workload_on(spec, spec.build_fabric(choice, "test", Scale()), EXAMPLES)
        full = even.training.rank_tokens * even.model.token_bytes
        self.scale = Scale(full / (TOKENS * TOKEN_BYTES), 1.0)
        fabric = spec.build_fabric(choice, "test", self.scale)
        self.gating = RecordedGating(RANKS, RANKS)
        self.work = workload_of(choice, training_workload(even, self.gating))
        self.tasks = TrainingTasks(Jobs.of(spec, fabric, self.work), self.gating, wall=wall)
        self.calls = RankCalls(self.tasks, TOKEN_BYTES, 2 * TOKENS)
        self.clock = VirtualClock()
        controller = MemoryController(fabric, SPILL, self.clock)
        self.agents = MemoryAgents(fabric, lambda: controller.lit, self.clock)
        background = VirtualTimeExecutor(self.clock, VirtualClock())
        controller.clock = background.own
        self.executor = Executor(
            fabric,
            SPILL,
            self.agents,
            {"r0": controller},
            CircuitSet(),
            settings=RunSettings(arming_ns=6 * MS, control=ControlSettings(control_s=0.0)),
            instruments=instruments_in_memory(self.clock, background),
            calls=self.calls,
        )
        self.program = Program(self.agents, self.clock, late_ms * MS, wrong)

    def run(self) -> list[IterationRun]:
        self.clock.at(0, self.program.call)
        return self.executor.run(self.tasks.programmes, ITERATIONS)


@pytest.mark.parametrize("light", ["block", "reuse", "predict", "divert"])
def test_every_byte_of_ranks_is_sent_once(light: str) -> None:
    bench = Bench(light)
    runs = bench.run()
    assert [len(run.collectives) for run in runs] == [PER_ITERATION] * ITERATIONS
    sent: dict[tuple[int, str, str], list[tuple[int, int]]] = defaultdict(list)
    exchanges = {}
    for exchange, flow in bench.agents.sent_parts:
        exchanges[exchange.number] = exchange
        sent[exchange.number, flow.src, flow.dst].append((flow.offset, flow.bytes))
    assert len(exchanges) == PER_ITERATION * ITERATIONS
    assert bench.program.errors == []
    for number, exchange in exchanges.items():
        for (src, dst), size in exchange.owed.items():
            position = 0
            for offset, count in sorted(sent[number, src, dst]):
                assert offset == position
                position += count
            assert position == size


@pytest.mark.parametrize("light", ["block", "reuse", "predict", "divert"])
def test_demand_of_tasks_is_what_gates_chose(light: str) -> None:
    bench = Bench(light)
    for run in bench.run():
        for part in run.collectives:
            work = part.operation
            assert isinstance(work, Collective)
            tokens = gate(run.number, work.layer)
            to_experts = (work.kind == "dispatch") == (work.direction == "forward")
            owed = (tokens if to_experts else tokens.T).reshape(4, 2, 4, 2).sum(axis=(1, 3))
            expected = owed * TOKEN_BYTES * bench.scale.bytes
            between = ~np.eye(4, dtype=bool)
            assert work.demand.array[between] == pytest.approx(expected[between])
    assert (bench.gating.array(ITERATIONS, LAYERS)[1, 1] == gate(1, 1)).all()


@pytest.mark.parametrize("light", ["block", "reuse", "predict", "divert"])
def test_training_lasts_as_long_as_a_replay_of_its_gates(light: str) -> None:
    """Known demand isn't used before its gate has run: otherwise training would be faster."""
    bench = Bench(light)
    measured = [run.end_ns - run.start_ns for run in bench.run()]
    replayed = Bench(light)
    for iteration in range(ITERATIONS):
        for layer in range(LAYERS):
            replayed.gating.record(iteration, layer, gate(iteration, layer))
    replayed.executor._calls, replayed.executor._tasks.calls = None, Calls()
    runs = replayed.executor.run(replayed.tasks.jobs.programmes, ITERATIONS)
    assert measured == pytest.approx([run.end_ns - run.start_ns for run in runs], rel=2e-3)


def test_predictions_are_compared_with_the_gates() -> None:
    bench = Bench("predict")
    bench.run()
    assert bench.work.predictions(0) == (None,) * LAYERS
    predictions = [p for n in (1, 2) for p in bench.work.predictions(n)]
    assert all(prediction is not None and 0 <= prediction.hits <= 1 for prediction in predictions)


@pytest.mark.parametrize("light", ["block", "reuse", "predict", "divert"])
def test_late_ranks_cost_no_model_time_and_are_reported(light: str) -> None:
    in_time, late = Bench(light), Bench(light, late_ms=400)
    expected, runs = in_time.run(), late.run()
    for run, other in zip(runs, expected, strict=True):
        assert run.end_ns - run.start_ns == pytest.approx(other.end_ns - other.start_ns, rel=2e-3)
        assert run.harness_ns <= PER_ITERATION * 12 * MS, "orders, not late ranks"
        for part, known in zip(run.collectives, other.collectives, strict=True):
            assert part.circuits == known.circuits
    [slowest] = {round(work.took_s, 3) for work in late.calls.work}
    assert slowest == 0.4
    assert {work.modelled_s < 0.4 for work in late.calls.work} == {True}


def test_wall_computation_is_what_ranks_need() -> None:
    runs = Bench(late_ms=400, wall=True).run()
    # Nothing is known of the computation before the first call.
    assert runs[1].compute_ns == pytest.approx(PER_ITERATION * 400 * MS, rel=0.02)


def test_call_with_other_bytes_than_its_layer_is_refused() -> None:
    with pytest.raises(TrainingProgramError, match="iteration 0, forward combine of layer 1"):
        Bench(wrong=3).run()


def test_program_of_other_sizes_is_refused() -> None:
    bench = Bench()
    bench.calls._row_tokens = 2 * TOKENS + 1
    with pytest.raises(TrainingProgramError, match="rank 0 dispatches 65,536 bytes, and 129 tok"):
        bench.run()


def test_lost_rank_ends_the_run() -> None:
    bench = Bench()
    bench.clock.at(30 * MS, lambda: bench.agents.ended_ranks.update({3: "rank 3 on s1: ended"}))
    with pytest.raises(RanksLostError, match="rank 3 on s1"):
        bench.run()
    finished, lost_ns = bench.executor.give_up()
    assert finished == []
    assert lost_ns == 30 * MS


def test_counts_by_expert_are_taken_from_the_program() -> None:
    sends = tuple((TOKEN_BYTES * 4,) * 2 for _ in range(2))
    ranks = Exchange((0, 1), 0, ("s0", "s1"), sends, "float32")
    counted = Exchange((0, 1), 0, ("s0", "s1"), sends, "float32", ((1, 3, 4, 0), (2, 2, 0, 4)))
    assert gate_tokens(counted, 4, TOKEN_BYTES, 8).tolist() == [[1, 3, 4, 0], [2, 2, 0, 4]]
    assert gate_tokens(ranks, 4, TOKEN_BYTES, 8).tolist() == [[2, 2, 2, 2], [2, 2, 2, 2]]
