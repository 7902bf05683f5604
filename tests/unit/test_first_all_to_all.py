"""The first all-to-all of a layer, under each policy: when it starts, by which ways it goes, what it waits for, and what is told of it."""

from pathlib import Path

import pytest

from controller.planner.eps import EpsOnly
from controller.planner.mixnet import MIXNET
from controller.planner.policy import Policy
from controller.planner.spill import Spill
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import SpecError
from moefabric.experiment.first import first_told
from moefabric.experiment.memory import AtOnce, MemoryAgents, MemoryLight, VirtualClock
from moefabric.experiment.predict import predicted
from moefabric.experiment.replay import Replay
from moefabric.experiment.results import Json, result
from moefabric.experiment.runs import IterationRun, Moved
from moefabric.experiment.workload import workload_on
from moefabric.iteration import FIRST, Collective, Compute, First, Operation, Reconfigure
from moefabric.spec import load
from moefabric.topology import Fabric, Scale
from tests.fabrics import fabric

EXAMPLES = Path(__file__).parents[2] / "examples"
MS = 1_000_000
NEAR = 2000
SERVERS = ("s0", "s1", "s2", "s3")
TENTH = 0.1 * 100e9 / 8 * 1448 / 1514
ARMING_MS = 6


def demand(*pairs: tuple[int, int]) -> DemandMatrix:
    rows = [[0.0] * 4 for _ in range(4)]
    for a, b in pairs:
        rows[a][b] = TENTH
    return DemandMatrix(SERVERS, rows)


NEIGHBOURS, CROSSED = demand((0, 1), (2, 3)), demand((0, 2), (1, 3))
EXACT = Reconfigure("forward", 0, NEIGHBOURS)


def passed(first: First, guess: DemandMatrix | None = None, expert_s: float = 0.050) -> list[Operation]:
    """The forward pass of a layer whose attention takes 40 ms."""
    foreseen = Reconfigure("forward", 0, guess) if guess is not None else None
    return [
        Compute("attention", "forward", 0, (0.040,) * 4, foreseen if first == "predict" else None),
        *([EXACT] if first == "block" else []),
        Collective("dispatch", "forward", 0, NEIGHBOURS, EXACT if first == "divert" else None),
        Compute("expert", "forward", 0, (expert_s,) * 4, EXACT if first in ("reuse", "predict") else None),
        Collective("combine", "forward", 0, NEIGHBOURS.combine()),
    ]


class Unlit(MemoryLight):
    """A light that goes dark for a change and doesn't come back."""

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """As any, but nothing is lit afterwards."""
        moved = super().reconfigure(demand)
        self.lit = CircuitSet()
        return Moved(moved.before, CircuitSet(), moved.phases, moved.after)


class Bench:
    """A fabric of one optical and one electrical NIC a server, in memory, with `lit` from the layer before."""

    def __init__(
        self,
        made: Fabric | None = None,
        policy: Policy = MIXNET,
        lit: DemandMatrix | None = CROSSED,
        light: type[MemoryLight] = MemoryLight,
    ) -> None:
        self.fabric, self.policy, self.clock = made or fabric(1, 1), policy, VirtualClock()
        self.light = light(self.fabric, policy, self.clock)
        if lit is not None and self.fabric.optical:
            self.light.lit = policy.circuits(self.fabric, self.fabric.regions[0], lit, CircuitSet())
        self.replay = Replay(
            self.fabric, policy, MemoryAgents(self.fabric, lambda: self.light.lit, self.clock),
            {"r0": self.light} if self.fabric.optical else {}, self.light.lit, clock=self.clock,
            background=AtOnce(), arming_ns=ARMING_MS * MS, stolen=lambda: (0, 0),
        )  # fmt: skip

    def run(self, operations: list[Operation], number: int = 0) -> IterationRun:
        return self.replay.iteration(number, operations)


@pytest.mark.parametrize(
    ("first", "guess", "starts_ms", "ends_ms", "combined_ms"),
    [
        pytest.param("block", None, 40 + 25 + 6, 171, 321, id="block"),
        pytest.param("reuse", None, 40, 140, 290, id="reuse"),
        pytest.param("predict", NEIGHBOURS, 40, 140, 290, id="predict-rightly"),
        pytest.param("predict", CROSSED, 40, 140, 290, id="predict-wrongly"),
        pytest.param("divert", None, 40, 105.5, 255.5, id="divert"),
    ],
)
def test_when_a_first_all_to_all_starts_and_ends(
    first: First, guess: DemandMatrix | None, starts_ms: float, ends_ms: float, combined_ms: float
) -> None:
    """100 ms of bytes a pair, by light or by the EPS; diverted, by the EPS for 31 ms of settling and telling, then by both."""
    dispatch, combine = Bench().run(passed(first, guess)).collectives
    assert dispatch.start_ns == pytest.approx(starts_ms * MS, abs=NEAR)
    assert dispatch.end_ns == pytest.approx(ends_ms * MS, abs=NEAR)
    assert combine.end_ns == pytest.approx(combined_ms * MS, abs=NEAR)
    assert {record.path for record in combine.records} == {"o0"}, "by then the light is right"


@pytest.mark.parametrize(
    ("first", "guess", "paths"),
    [
        pytest.param("block", None, {"o0"}, id="block"),
        pytest.param("reuse", None, {"e0"}, id="reuse"),
        pytest.param("predict", NEIGHBOURS, {"o0"}, id="predict-rightly"),
        pytest.param("predict", CROSSED, {"e0"}, id="predict-wrongly"),
        pytest.param("divert", None, {"e0", "o0"}, id="divert"),
    ],
)
def test_by_which_ways_a_first_all_to_all_goes(
    first: First, guess: DemandMatrix | None, paths: set[str]
) -> None:
    dispatch, _ = Bench().run(passed(first, guess)).collectives
    assert {record.path for record in dispatch.records} == paths
    assert sum(record.bytes for record in dispatch.records) == pytest.approx(2 * TENTH, abs=4)


@pytest.mark.parametrize("first", FIRST)
def test_it_is_measured_as_it_was_predicted_with_its_wait(first: First) -> None:
    bench = Bench()
    dispatch, combine = bench.run(passed(first, NEIGHBOURS)).collectives
    waits = {"block": (31, 25), "reuse": (0, 0), "predict": (0, 0), "divert": (0, 0)}[first]
    assert (dispatch.waited_ns / MS, dispatch.expected_wait_s * 1e3) == pytest.approx(waits)
    assert (combine.waited_ns, combine.expected_wait_s) == (0, 0)
    for part in (dispatch, combine):
        took_s = (part.end_ns - part.start_ns) / 1e9
        assert took_s == pytest.approx(part.prediction.seconds, rel=1e-4)


def test_a_guess_behind_a_short_attention_is_waited_for() -> None:
    attention = Compute("attention", "forward", 0, (0.010,) * 4, EXACT)
    dispatch = Collective("dispatch", "forward", 0, NEIGHBOURS)
    [part] = Bench().run([attention, dispatch]).collectives
    assert part.waited_ns == (25 - 10 + ARMING_MS) * MS
    assert part.expected_wait_s == pytest.approx(0.015)


def test_a_diverted_all_to_all_moves_its_light_afterwards_where_that_is_sooner() -> None:
    """200 ms of settling don't pay within 100 ms; behind the experts, they are hidden."""
    run = Bench(fabric(1, 1, settle_ns=200 * MS)).run(passed("divert", expert_s=0.250))
    [light], [dispatch, combine] = run.reconfigurations, run.collectives
    assert {record.path for record in dispatch.records} == {"e0"}
    assert not dispatch.moved_now
    assert light.start_ns == pytest.approx(dispatch.end_ns, abs=NEAR)
    assert combine.start_ns == pytest.approx(dispatch.end_ns + 250 * MS, abs=NEAR)


def test_the_combine_waits_for_light_that_is_still_moving() -> None:
    run = Bench(fabric(1, 1, settle_ns=200 * MS)).run(passed("divert", expert_s=0.020))
    dispatch, combine = run.collectives
    assert combine.start_ns == pytest.approx(dispatch.end_ns + (200 + ARMING_MS) * MS, abs=NEAR)
    assert {record.path for record in combine.records} == {"o0"}
    assert combine.waited_ns == pytest.approx((180 + ARMING_MS) * MS, abs=NEAR)
    assert combine.expected_wait_s == pytest.approx(0.180, abs=1e-5)


def test_a_diverted_all_to_all_is_one_collective_though_agents_are_told_twice() -> None:
    """Failures are planned by the number of collectives that have started."""
    bench, started = Bench(), list[int]()
    bench.replay.collectives.begun = started.append
    dispatch, combine = bench.run(passed("divert")).collectives
    assert started == pytest.approx([dispatch.start_ns, combine.start_ns], abs=NEAR)


def test_what_new_light_takes_later_is_paced_to_end_when_all_else_does() -> None:
    """It has 34.5 ms of the 65.5 left, all of which its circuit needs."""
    dispatch, _ = Bench().run(passed("divert")).collectives
    full_bps = 1.03 * 8 * TENTH / 0.1
    paces = {record.path: record.rate_bps for record in dispatch.records}
    assert paces["o0"] == pytest.approx(full_bps, rel=1e-3)


def test_what_was_left_for_light_that_does_not_come_goes_by_the_eps() -> None:
    run = Bench(light=Unlit).run(passed("divert"))
    dispatch, combine = run.collectives
    assert {record.path for part in (dispatch, combine) for record in part.records} == {"e0"}
    assert sum(record.bytes for record in dispatch.records) == pytest.approx(2 * TENTH, abs=4)
    assert len(dispatch.records) == 4, "two flows at once, and two that were to go by light"


def test_light_that_stays_carries_from_the_start() -> None:
    bench = Bench(policy=Spill(), lit=NEIGHBOURS)
    run = bench.run(passed("divert"))
    [light], [dispatch, _] = run.reconfigurations, run.collectives
    assert light.moved.before == light.moved.after
    assert dispatch.end_ns - dispatch.start_ns == pytest.approx(50 * MS, abs=NEAR)
    assert len({record.collective for record in dispatch.records}) == 1


def test_a_fabric_without_light_diverts_nothing() -> None:
    run = Bench(fabric(0, 1), EpsOnly()).run(passed("divert"))
    assert run.reconfigurations == []
    assert {record.path for part in run.collectives for record in part.records} == {"e0"}


def test_times_are_stretched_by_dilation_alike() -> None:
    made = fabric(1, 1, scale=Scale(100, 2), settle_ns=50 * MS)
    bench = Bench(made)
    dispatch, _ = bench.run(passed("divert")).collectives
    model_s = (dispatch.end_ns - dispatch.start_ns) / 1e9 / 2
    assert model_s == pytest.approx((0.1 + 0.025 + 0.003) / 2, abs=1e-4), (
        "3 ms of the model's for 6 ms of telling"
    )
    assert model_s == pytest.approx(dispatch.prediction.seconds, abs=1e-4)


def told(first: First, guess: DemandMatrix | None = None) -> Json:
    bench = Bench()
    runs = [bench.run(passed(first, guess), number) for number in range(1)]
    entry = result(bench.fabric, first, "mixnet", runs, cpu_idle=[], remarks=[])
    assert entry["fidelity"]["verdict"] == "pass"
    return entry | {"first_all_to_all": first_told(bench.fabric, "mixnet", first, runs, {})}


@pytest.mark.parametrize(
    ("first", "exposed_ms", "predicted_ms"),
    [
        pytest.param("block", 131, 125, id="block"),
        pytest.param("reuse", 100, 100, id="reuse"),
        pytest.param("divert", 65.5, 65.5, id="divert"),
    ],
)
def test_a_result_tells_what_first_all_to_alls_were_exposed_to(
    first: First, exposed_ms: float, predicted_ms: float
) -> None:
    said = told(first)
    summary, dispatch = said["first_all_to_all"], said["collectives"][0]
    assert summary["policy"] == first
    assert summary["exposed_s"] * 1e3 == pytest.approx(exposed_ms, abs=0.01)
    assert summary["predicted_exposed_s"] * 1e3 == pytest.approx(predicted_ms, abs=0.01)
    assert summary["ideal_s"] == pytest.approx(0.1), "mixnet sends by light alone where there is any"
    assert dispatch["waited_s"] + dispatch["measured_s"] == pytest.approx(summary["exposed_s"])
    assert dispatch["moved_now"] is (first == "divert")


def test_a_guess_of_which_nothing_is_learnt_says_so() -> None:
    assert told("predict")["first_all_to_all"]["foresight"]["guessed"] == 0


@pytest.fixture(scope="module")
def foretold() -> dict[str, Json]:
    said = predicted(load.experiment(EXAMPLES / "first-all-to-all.yaml"), EXAMPLES)
    return {entry["fabric"]: entry for entry in said["fabrics"]}


def test_of_the_example_diverting_is_predicted_best_and_blocking_worst(foretold: dict[str, Json]) -> None:
    exposed = {name: entry["first_all_to_all"]["predicted_exposed_s"] for name, entry in foretold.items()}
    assert (
        exposed["mixnet-divert"]
        < exposed["mixnet-predict"]
        < exposed["mixnet-reuse"]
        < exposed["mixnet-block"]
    )
    assert foretold["mixnet-block"]["first_all_to_all"]["predicted_wait_s"] == pytest.approx(0.025)
    assert exposed["spill-divert"] <= exposed["mixnet-divert"]


def test_light_moves_as_often_whenever_it_is_exact(foretold: dict[str, Json]) -> None:
    moves = {name: entry["reconfigurations"] for name, entry in foretold.items()}
    assert moves["mixnet-block"] == moves["mixnet-reuse"] == moves["mixnet-divert"] > 10
    assert moves["mixnet-predict"] > moves["mixnet-block"], "a wrong guess is corrected"


def test_foresight_learns_iteration_by_iteration_and_better_than_nothing() -> None:
    spec = load.experiment(EXAMPLES / "first-all-to-all.yaml")
    work = workload_on(spec, spec.wired(spec.fabrics[1], "x", Scale()), EXAMPLES).under("predict")
    assert work.guesses(0) == (None,) * 4
    guesses = [guess for guess in work.guesses(3)[1:] if guess is not None]
    assert len(guesses) == 3
    assert {(guess.k, guess.random_hits) for guess in guesses} == {(4, 0.25)}
    assert sum(guess.hits for guess in guesses) > sum(guess.unchanged_hits for guess in guesses)
    with pytest.raises(ValueError, match="iteration 1: 3 are learnt already"):
        work.guesses(1)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        pytest.param(
            "fabrics=[{name: a, optical: 0, electrical: 4, policy: eps, first: divert}]",
            "fabrics[0].first: divert is for light that moves, eps's doesn't: leave it out",
            id="no-light",
        ),
        pytest.param(
            "fabrics=[{name: a, optical: 3, electrical: 1, policy: static, first: reuse}]",
            "fabrics[0].first: reuse is for light that moves, static's doesn't: leave it out",
            id="light-that-stays",
        ),
        pytest.param(
            "fabrics=[{name: a, optical: 3, electrical: 1, policy: mixnet, first: hope}]",
            "fabrics[0].first: ",
            id="no-such-policy",
        ),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(setting: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        load.experiment(EXAMPLES / "first-all-to-all.yaml", [setting])
    assert said in str(refused.value)
