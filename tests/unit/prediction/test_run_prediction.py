"""Expected completion of flows: from orders and dependencies, whatever was planned or measured."""

from collections.abc import Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow, FlowRecord, PacedFlow, Split
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.execution.executor import Executor, RunSettings
from moefabric.execution.iteration_state import IterationState, SentTask
from moefabric.execution.run_prediction import _met_on_links, ordered_streams
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.sending.flow_pacing import LEAST_HEADROOM
from moefabric.results.records.records import CollectiveRun, IterationRun, RunFailures
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.simulator.event_simulation import Step, simulate_streams
from moefabric.simulator.fair_sharing import Stream
from moefabric.simulator.fluid import Prediction, goodput_bps
from moefabric.simulator.server_times import ServerTimes
from moefabric.workload.iterations.iteration import Collective, Compute
from moefabric.workload.iterations.job import Job, JobShape
from tests.support.fabrics import fabric
from tests.support.memory_testbed import MemoryAgents, VirtualClock, instruments_in_memory

GOODPUT = 100e9 * 1448 / 1514
TENTH = 0.1 * GOODPUT / 8
MS = 1_000_000
DEMAND = DemandMatrix(
    ("s0", "s1", "s2", "s3"),
    [[0.0, TENTH * 0.7, TENTH * 0.3, 0.0], [0.0] * 4, [0.0] * 4, [0.0, 0.0, 0.0, 0.0]],
)
SLACK = DemandMatrix(
    ("s0", "s1", "s2", "s3"),
    [[0.0, TENTH, 0.0, 0.0], [0.0] * 4, [0.0, 0.0, 0.0, TENTH / 2], [0.0] * 4],
)


@pytest.mark.parametrize("scale", [Scale(), Scale(500), Scale(1000, 20)])
def test_orders_become_streams_in_the_units_of_the_model(scale: Scale) -> None:
    wired = fabric(0, 1, scale=scale)
    size, rate_bps = scale.size_bytes(1e9), scale.rate_bps(50e9)
    ordered = [PacedFlow("s0", "s1", "e0", size, rate_bps), PacedFlow("s1", "s0", "e0", size, None)]
    paced, free = ordered_streams(wired, CircuitSet(), ordered, 0.5)
    assert paced.bytes == pytest.approx(1e9)
    assert paced.links == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    assert paced.max_rate_bps == pytest.approx(50e9)
    assert (free.max_rate_bps, free.after_s) == (inf, 0.5)


class SlowAgents(MemoryAgents):
    """Agents of which one server's flows arrive 10 ms later than the fluid model says."""

    slow = ""

    def _record(self, flow: PacedFlow, start: int, end: int, why: str) -> FlowRecord:
        return super()._record(flow, start, end + 10 * MS * (flow.src == self.slow), why)


def run_of(
    *demands: DemandMatrix, paced: bool = True, slow: str = "", wired: Fabric | None = None
) -> IterationRun:
    """One iteration on an EPS of one NIC a server: 20 ms of experts before each all-to-all."""
    clock, wired = VirtualClock(), wired or fabric(0, 1)
    agents = SlowAgents(wired, CircuitSet, clock)
    agents.slow = slow
    executor = Executor(
        wired,
        MIXNET,
        agents,
        {},
        CircuitSet(),
        settings=RunSettings(paced=paced),
        instruments=instruments_in_memory(clock),
    )
    return executor.iteration(
        0,
        [
            operation
            for layer, demand in enumerate(demands)
            for operation in (
                Compute("expert", "forward", layer, (0.02,) * 4),
                Collective("dispatch", "forward", layer, demand),
            )
        ],
    )


@pytest.mark.parametrize(
    ("demand", "paced", "expected_s"),
    [
        pytest.param(DEMAND, True, [0.1, 0.1], id="paced-flows-of-a-full-link-end-together"),
        pytest.param(DEMAND, False, [0.1, 0.06], id="tcp-ends-the-smaller-one-sooner"),
        pytest.param(SLACK, True, [0.1, 0.1 / LEAST_HEADROOM], id="pace-includes-its-headroom"),
        pytest.param(SLACK, False, [0.1, 0.05], id="tcp-alone-on-its-link-has-all-of-it"),
    ],
)
def test_each_flow_has_an_expected_completion(
    demand: DemandMatrix, paced: bool, expected_s: Sequence[float]
) -> None:
    [run] = run_of(demand, paced=paced).collectives
    assert run.flows_s == pytest.approx(expected_s)
    assert run.predicted_s == pytest.approx(0.1)


def test_flows_of_several_tasks_have_equal_shares_of_a_full_link() -> None:
    """A transfer at its NIC's whole rate beside three flows of an all-to-all by the same NIC."""
    wired, link = fabric(0, 1), ("s0/e0", "leaf0")
    transfer = [PacedFlow("s0", "s1", "e0", round(TENTH / 2), 1.03 * GOODPUT)]
    all_to_all = [
        PacedFlow("s0", peer, "e0", round(TENTH), 1.03 * GOODPUT / 3) for peer in ("s1", "s2", "s3")
    ]
    orders = [ordered_streams(wired, CircuitSet(), flows) for flows in (transfer, all_to_all)]
    rates = {k: goodput_bps(wired, k) for order in orders for s in order for k in s.links}
    assert sum(s.max_rate_bps for s in orders[1]) == pytest.approx(rates[link]), "no headroom"
    first, *others = simulate_streams([s for order in orders for s in order], rates)
    assert first == pytest.approx(4 * 0.05), "not twice its time alone, in proportion to paces"
    assert others == pytest.approx([0.35] * 3)


@pytest.mark.parametrize(
    ("apart_s", "expected_s"),
    [(0.05, [0.15, 0.15]), (0.1, [0.1, 0.1]), (0.2, [0.1, 0.1])],
    ids=["overlap", "meet", "miss"],
)
def test_independent_tasks_share_links_while_both_really_send(
    apart_s: float, expected_s: Sequence[float]
) -> None:
    """Both would start together by their dependencies; the harness is part of the real start."""
    wired = fabric(0, 1, scale=Scale(1000, 20))
    stream = Stream(TENTH, (("s0/e0", "leaf0"),))
    state: Any = IterationState(Job(0, JobShape(), ()), (), {}, IterationRun(0, 0))
    state.steps = [Step(streams=(stream,))] * 2
    runs: list[Any] = [
        SimpleNamespace(start_ns=7 * MS, harness_ns=0, server=ServerTimes()),
        SimpleNamespace(
            start_ns=5 * MS, harness_ns=round(20e9 * apart_s) + 2 * MS, server=ServerTimes()
        ),
    ]
    sent = [(state, SentTask(number, ((run, (0,)),))) for number, run in enumerate(runs)]
    assert [t.seconds for t in _met_on_links(wired, sent).values()] == pytest.approx(expected_s)


def test_expectation_follows_dependencies_and_not_the_measured_times() -> None:
    in_time, late = run_of(DEMAND, SLACK), run_of(DEMAND, SLACK, slow="s0")
    assert late.predicted_s == in_time.predicted_s == pytest.approx(0.24)
    assert [c.flows_s for c in late.collectives] == [c.flows_s for c in in_time.collectives]
    assert [c.error(1.0) for c in late.collectives] == pytest.approx([0.1, 0.1], abs=1e-4)
    assert (late.end_ns - late.start_ns) / 1e9 == pytest.approx(0.26, abs=1e-4)


def test_error_of_a_flow_is_a_share_of_its_collective() -> None:
    """The flow with slack is 10 ms and the pace's headroom late."""
    [run] = run_of(SLACK, slow="s2").collectives
    errors = {flow.src: error for flow, error in run.flow_errors(1.0)}
    assert errors == {
        "s0": pytest.approx(0, abs=1e-4),
        "s2": pytest.approx(0.1 + 1 - 1 / LEAST_HEADROOM, abs=1e-4),
    }


def test_flows_between_one_pair_by_one_path_are_told_apart_by_their_orders() -> None:
    planned = Flow("s0", "s1", "e0", 1.0), Flow("s0", "s1", "e0", 2.0)
    first, second = (
        FlowRecord(n, "s0", "s1", "e0", 1, 1, None, 0, end, 0, end, 0, ok=True)
        for n, end in ((7, 100 * MS), (9, 200 * MS))
    )
    run = CollectiveRun(
        0, Collective("dispatch", "forward", 0, DEMAND), Prediction(0.2, (), None, {}),
        planned, (second, first), 0, flows_s=(0.1, 0.2),
    )  # fmt: skip
    assert [error for _, error in run.flow_errors(1.0)] == pytest.approx([0, 0])


def verdict_reasons(run: IterationRun) -> list[str]:
    result = fabric_result(
        fabric(0, 1), "eps", "eps", [run], cpu_idle=[0.5], remarks=[], failures=RunFailures()
    )
    assert {"flow", "collective", "iteration"} <= result.fidelity.completion_errors.keys()
    assert [c.error for c in result.collectives] == [
        pytest.approx(c.measured_s / (c.predicted_s or 0) - 1) for c in result.collectives
    ]
    return result.fidelity.reasons


def test_late_flow_is_named() -> None:
    assert any(
        "worst: s2 to s3 by e0, r0: forward" in r for r in verdict_reasons(run_of(SLACK, slow="s2"))
    )


class ForgetfulPolicy:
    """Splits a demand as its policy does, and forgets what one server owes."""

    def __init__(self) -> None:
        self.circuits = MIXNET.circuits

    def split(self, wired: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        shares = MIXNET.split(wired, demand, circuits)
        return Split(tuple(share for share in shares if share.src != "s2"))


def test_bytes_that_the_policy_forgets_contradict_the_demand() -> None:
    clock, wired = VirtualClock(), fabric(0, 1)
    executor = Executor(
        wired,
        ForgetfulPolicy(),
        MemoryAgents(wired, CircuitSet, clock),
        {},
        CircuitSet(),
        instruments=instruments_in_memory(clock),
    )
    run = executor.iteration(0, [Collective("dispatch", "forward", 0, SLACK)])
    assert any(
        f"s2 sent 0 bytes to s3; the demand is {TENTH / 2:.0f}" in reason
        for reason in verdict_reasons(run)
    )
    assert not any("the demand is" in reason for reason in verdict_reasons(run_of(SLACK)))
