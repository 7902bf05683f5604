"""Bytes counted at ports against the plan: attribution, tolerance, and the names of faults."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureRecord
from moefabric.core.flows import Flow, FlowRecord, PacedFlow
from moefabric.core.port_counts import RECEIVED, SENT, PortReading, counted_nics
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.execution.executor import Executor, RunSettings
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.policy import EpsOnly, Policy
from moefabric.planner.sending.task_flows import TaskFlows, region_by_server
from moefabric.results.model import FabricResult, Verdict
from moefabric.results.records.counted_traffic import CountedTraffic, Misrouting
from moefabric.results.records.port_windows import PortWindows, TransferCount
from moefabric.results.records.records import CollectiveRun, IterationRun, RunFailures
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.results.verdict.measurements import FabricMeasurements
from moefabric.simulator.fluid import predict
from moefabric.workload.iterations.iteration import Collective, Operation, Reconfigure, Transfer
from tests.support.fabrics import MESH, fabric
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    MemoryPortCounters,
    VirtualClock,
    instruments_in_memory,
)

SERVERS = ("s0", "s1", "s2", "s3")
SIZE = 26_500_000.0
DEMAND = DemandMatrix(SERVERS, SIZE * (1 - np.eye(4)))
LIT = CircuitSet.of(MESH)
BY_O2 = Flow("s0", "s1", "o2", SIZE)


class Bench:
    """Transfers between servers whose bytes are counted in memory; `lit` carries light."""

    def __init__(self, wired: Fabric | None = None) -> None:
        self.fabric, self.lit = wired or fabric(), LIT
        self.counters = MemoryPortCounters(self.fabric)
        self.windows = PortWindows(self.counters)

    def start(
        self,
        *flows: Flow,
        circuits: CircuitSet = LIT,
        others: Sequence[str] = (),
        kinds: Sequence[bool] = (True, False),
    ) -> TransferCount:
        region_of = region_by_server(self.fabric.ep_groups)
        ends = dict.fromkeys([*others, *(end for flow in flows for end in (flow.src, flow.dst))])
        leaves = self.fabric.eps_wiring.leaves_of(ends) if self.fabric.spines else ()
        groups = [(server, optical) for server in ends for optical in kinds]
        groups += [(leaf, False) for leaf in leaves]
        count = self.windows.begin(groups)
        prediction = predict(self.fabric, circuits, flows)
        predictions = dict.fromkeys(region_of.values(), prediction)
        count.orders.append(TaskFlows(self.fabric, flows, circuits, predictions, region_of))
        return count

    def send(self, *flows: Flow) -> None:
        for flow in flows:
            size = self.fabric.scale.size_bytes(flow.bytes)
            self.counters.count(PacedFlow(flow.src, flow.dst, flow.path, size, None), self.lit)

    def end(self, count: TransferCount, retransmits: int = 0) -> CollectiveRun:
        flows = count.orders[0].flows
        records = tuple(
            FlowRecord(
                1, f.src, f.dst, f.path, round(f.bytes), round(f.bytes), None, 0, 9, 0, 9,
                retransmits=retransmits, ok=True,
            )
            for f in flows
        )  # fmt: skip
        self.windows.end(count, records)
        prediction = count.orders[0].predictions["r0"]
        work = Transfer("forward", (), 0.0)
        return CollectiveRun(0, work, prediction, flows, records, 0, count=count)

    def texts(self, *runs: CollectiveRun) -> list[str]:
        traffic = CountedTraffic(self.fabric, runs)
        return [f.text for run in runs for f in traffic.misrouted(run, RunFailures())]


def test_payload_is_counted_without_headers() -> None:
    before = PortReading(np.zeros((1, 4), np.int64), np.zeros((1, 4), np.int64))
    after = PortReading(np.full((1, 4), 3000), np.full((1, 4), 2))
    assert after.payload_since(before).tolist() == [[3000 - 2 * 66] * 4]


def test_frames_without_payload_that_are_shorter_than_headers_count_nothing() -> None:
    nothing, counted = np.zeros((1, 4), np.int64), np.full((1, 4), 42)
    arp = PortReading(counted, np.ones_like(counted))
    assert arp.payload_since(PortReading(nothing, nothing)).tolist() == [[0] * 4]


def test_light_and_eps_are_counted_where_bytes_arrive() -> None:
    bench = Bench()
    flows = BY_O2, Flow("s2", "s3", "e0", 1e6)
    count = bench.start(*flows)
    bench.send(*flows)
    run = bench.end(count)
    counted = CountedTraffic(bench.fabric, [run]).bytes_of(run)
    assert counted.by_light == pytest.approx(SIZE, rel=1e-5)
    assert counted.by_eps == pytest.approx(1e6, rel=1e-3)
    assert bench.texts(run) == []


def misrouted_run() -> tuple[Bench, CollectiveRun]:
    """Return a run whose only flow left its circuit, and its bench."""
    bench = Bench()
    count = bench.start(BY_O2)
    bench.lit = CircuitSet()
    bench.send(BY_O2)
    run = bench.end(count)
    return bench, run


def test_flow_that_left_its_circuit_is_named_with_both_ends() -> None:
    bench, run = misrouted_run()
    assert bench.texts(run) == [
        "s0 to s1 by o2: planned 26.5MB by light, counted 0B",
        "s0/e0 sent 26.5MB more than planned",
    ]
    counted = CountedTraffic(bench.fabric, [run]).bytes_of(run)
    assert counted.by_light == 0
    assert counted.by_eps == pytest.approx(SIZE, rel=1e-5)


def test_misrouting_of_several_transfers_is_named_once() -> None:
    bench, run = misrouted_run()
    traffic, named = CountedTraffic(bench.fabric, [run]), set[Misrouting]()
    iteration = IterationRun(0, 0, transfers=[replace(run, cpu_steal=1.0)] * 2)
    first, later = (
        FabricMeasurements.of(bench.fabric, iteration, RunFailures(), traffic, named)
        for _ in range(2)
    )
    assert len(first.misrouted) == len(set(first.misrouted)) == len(named) == 2
    assert later.misrouted == []


def test_flow_by_another_electrical_nic_is_named() -> None:
    bench = Bench(fabric(0, 2))
    planned = Flow("s0", "s1", "e0", SIZE)
    count = bench.start(planned, circuits=CircuitSet())
    bench.send(replace(planned, path="e1"))
    assert bench.texts(bench.end(count)) == [
        "s0 to s1 by e0: planned 26.5MB by EPS, counted 0B",
        "s0/e1 sent 26.5MB more than planned",
    ]


SPINES = fabric(0, 2, eps=Eps(servers_per_leaf=2, spines=2))
"""Two leaves of two servers; a NIC's number selects the spine."""
ACROSS = Flow("s0", "s2", "e0", SIZE), Flow("s0", "s2", "e1", SIZE)


def test_flows_spread_over_spines_as_planned_are_no_fault() -> None:
    bench = Bench(SPINES)
    flows = *ACROSS, Flow("s0", "s1", "e1", SIZE)
    count = bench.start(*flows, circuits=CircuitSet())
    bench.send(*flows)
    run = bench.end(count)
    assert bench.texts(run) == []
    counted = CountedTraffic(SPINES, [run]).bytes_of(run)
    assert counted.by_eps == pytest.approx(3 * SIZE, rel=1e-5), "uplinks count no byte twice"


def test_spine_that_carries_the_flows_of_all_others_is_named() -> None:
    bench = Bench(SPINES)
    bench.counters.spine = "spine0"
    count = bench.start(*ACROSS, circuits=CircuitSet())
    bench.send(*ACROSS)
    assert bench.texts(bench.end(count)) == [
        "s0 to s2 at leaf0 to spine1: planned 26.5MB by EPS, counted 0B",
        "leaf0 to spine0 carried 26.5MB more than planned",
    ]


def test_uplink_that_receives_too_much_is_named_with_its_spine() -> None:
    bench = Bench(SPINES)
    count = bench.start(*ACROSS, circuits=CircuitSet())
    bench.send(*ACROSS)
    bench.counters.add("leaf1~spine1", RECEIVED, 1_000_000)
    assert bench.texts(bench.end(count)) == ["spine1 to leaf1 carried 1MB more than planned"]


def test_answers_may_cross_another_spine_than_their_flows() -> None:
    short = [replace(flow, bytes=30_000) for flow in ACROSS]
    for answer, faults in ((1400, 0), (1500, 1)):
        bench = Bench(SPINES)
        count = bench.start(*short, circuits=CircuitSet())
        bench.send(*short)
        bench.counters.add("leaf0~spine0", RECEIVED, answer)
        assert len(bench.texts(bench.end(count))) == faults


def test_part_of_a_flow_on_another_way_is_counted() -> None:
    bench = Bench()
    count = bench.start(BY_O2)
    bench.send(replace(BY_O2, bytes=0.9 * SIZE), replace(BY_O2, path="e0", bytes=0.1 * SIZE))
    first, *_ = bench.texts(bench.end(count))
    assert first == "s0 to s1 by o2: planned 26.5MB by light, counted 23.85MB"


def test_light_that_comes_out_of_another_port_is_named() -> None:
    bench = Bench()
    bench.lit = CircuitSet.of(["s0/o2~s2/o1"])
    count = bench.start(BY_O2)
    bench.send(replace(BY_O2, dst="s2"))
    assert bench.texts(bench.end(count)) == [
        "s0 to s1 at s1/o0: planned 26.5MB by light, counted 0B"
    ]


@pytest.mark.parametrize(("stray", "faults"), [(1000, 0), (100_000, 2)])
def test_background_is_tolerated_up_to_a_permille(stray: int, faults: int) -> None:
    bench = Bench()
    count = bench.start(BY_O2, Flow("s1", "s0", "e0", 1e6))
    bench.send(BY_O2, Flow("s1", "s0", "e0", 1e6))
    bench.send(Flow("s2", "s0", "e0", stray))
    texts = bench.texts(bench.end(count))
    assert len(texts) == (faults > 0)


def test_bytes_sent_again_are_no_fault() -> None:
    for retransmits, faults in ((0, True), (20, True), (100, False)):
        bench = Bench()
        count = bench.start(BY_O2)
        bench.send(BY_O2, replace(BY_O2, bytes=100_000))
        assert bool(bench.texts(bench.end(count, retransmits))) == faults


ALL_AGAIN = 20_000
"""Segments of more bytes than `BY_O2` has."""


def test_bytes_sent_twice_are_a_fault_even_if_their_sender_calls_them_resent() -> None:
    bench = Bench()
    count = bench.start(BY_O2)
    bench.send(BY_O2, BY_O2)
    assert "s0/o2 sent 26.5MB more than planned" in bench.texts(bench.end(count, ALL_AGAIN))


@pytest.mark.parametrize(("share", "faults"), [(0.45, False), (1.0, True)])
def test_time_out_may_send_half_of_a_short_flow_again(share: float, faults: bool) -> None:
    short = replace(BY_O2, bytes=800_000)
    bench = Bench()
    count = bench.start(short)
    bench.send(short, replace(short, bytes=share * short.bytes))
    assert bool(bench.texts(bench.end(count, ALL_AGAIN))) == faults


@pytest.mark.parametrize(
    ("port", "column", "share", "faults"),
    [
        ("s0/e0", SENT, 0.15, 0),
        ("s0/e0", SENT, 0.25, 1),
        ("s1/e0", RECEIVED, 0.08, 0),
        ("s1/e0", RECEIVED, 0.12, 1),
        ("s0/e0", RECEIVED, 0.12, 1),
    ],
)
def test_less_is_received_again_than_sent_again(
    port: str, column: int, share: float, faults: int
) -> None:
    """What a queue drops leaves its server twice and arrives once."""
    bench, flow = Bench(), replace(BY_O2, path="e0")
    count = bench.start(flow, circuits=CircuitSet())
    bench.send(flow)
    bench.counters.add(port, column, round(share * SIZE))
    texts = bench.texts(bench.end(count, ALL_AGAIN))
    assert len(texts) == faults
    assert all(text.startswith(port) for text in texts)


def test_bytes_received_again_are_ascribed_to_the_nic_that_sent_them() -> None:
    bench, flow = Bench(), replace(BY_O2, path="e0")
    count = bench.start(flow, circuits=CircuitSet())
    bench.send(flow, replace(flow, bytes=0.15 * SIZE))
    texts = bench.texts(bench.end(count, ALL_AGAIN))
    assert texts == ["s1/e0 received 3.975MB more than planned, most from s0/e0"]


def test_excess_after_a_failure_is_that_of_cut_off_transfers() -> None:
    bench = Bench()
    count = bench.start(BY_O2)
    bench.send(BY_O2, Flow("s2", "s0", "e0", 1e6))
    run = bench.end(count)
    traffic = CountedTraffic(bench.fabric, [run])
    past = RunFailures(
        (FailureRecord(FailureKind.SERVER, ("s2",), -9, -8, -7, -6),), reopened_ns=(-5,)
    )
    port = FailureRecord(FailureKind.OCS_PORT, ("s2/o0",), -9, -8, -7, -6)
    assert traffic.misrouted(run, RunFailures((port,))), "it cuts no transfer off"
    assert traffic.misrouted(run, RunFailures())
    assert traffic.misrouted(run, past) == []
    assert traffic.misrouted(run, past, moved=True)


def test_missing_bytes_after_a_failure_stay_misrouted() -> None:
    past = FailureRecord(FailureKind.SERVER, ("s2",), -9, -8, -7, -6)
    bench = Bench()
    count = bench.start(BY_O2)
    bench.send(replace(BY_O2, path="e0"))
    run = bench.end(count)
    failures = RunFailures((past,), reopened_ns=(-5,))
    assert CountedTraffic(bench.fabric, [run]).misrouted(run, failures)


def test_transfers_that_share_a_nic_are_compared_together() -> None:
    bench = Bench()
    first, second = Flow("s0", "s1", "e0", 3e6), Flow("s0", "s2", "e0", 1e6)
    one = bench.start(first)
    bench.send(first)
    other = bench.start(second)
    run = bench.end(one)
    bench.send(second)
    runs = run, bench.end(other)
    traffic = CountedTraffic(bench.fabric, runs)
    assert [traffic.bytes_of(run).by_eps for run in runs] == pytest.approx([3e6, 1e6], rel=1e-3)
    assert bench.texts(*runs) == []


def test_bytes_off_their_circuit_are_not_ascribed_to_a_transfer_on_the_same_nic() -> None:
    bench = Bench()
    beside = Flow("s3", "s1", "e0", 1e6)
    one, other = bench.start(BY_O2), bench.start(beside)
    bench.lit = CircuitSet()
    bench.send(BY_O2, beside)
    runs = bench.end(one), bench.end(other)
    traffic = CountedTraffic(bench.fabric, runs)
    assert [traffic.bytes_of(run).by_eps for run in runs] == pytest.approx([SIZE, 1e6], rel=1e-3)


def test_transfer_without_a_run_has_its_share_of_a_nic() -> None:
    """An iteration that starts anew leaves transfers of which nobody reports."""
    bench = Bench()
    beside = Flow("s3", "s1", "e0", 1e6)
    one = bench.start(BY_O2, replace(beside, src="s0", bytes=3e6))
    other = bench.start(beside, kinds=[False])
    bench.send(BY_O2, replace(beside, src="s0", bytes=3e6), beside)
    bench.end(one)
    run = bench.end(other)
    assert CountedTraffic(bench.fabric, [run]).bytes_of(run).by_eps == pytest.approx(1e6, rel=1e-3)


def test_interrupted_transfer_leaves_its_ports_uncounted() -> None:
    bench = Bench()
    lost, beside = bench.start(BY_O2), bench.start(Flow("s1", "s0", "e0", 1e6))
    bench.windows.end(lost, (), complete=False)
    run = bench.end(beside)
    counted = CountedTraffic(bench.fabric, [run]).bytes_of(run)
    assert (counted.by_light, counted.by_eps) == (None, None)
    assert bench.texts(run) == [], "what was cut off is unknown"
    later = bench.start(Flow("s1", "s0", "e0", 1e6))
    bench.send(Flow("s1", "s0", "e0", 1e6))
    run = bench.end(later)
    assert CountedTraffic(bench.fabric, [run]).bytes_of(run).by_eps == pytest.approx(1e6, rel=1e-3)


def test_run_without_counters_has_no_counted_bytes() -> None:
    bench = Bench()
    count = bench.start(BY_O2)
    run = replace(bench.end(count), count=None)
    counted = CountedTraffic(bench.fabric, [run]).bytes_of(run)
    assert (counted.by_light, counted.by_eps) == (None, None)


def test_bytes_that_servers_forward_on_a_patch_panel_count_once() -> None:
    panel = replace(fabric(), electrical=0, eps=None, patch_panel=True)
    bench = Bench(panel)
    bench.lit = chain = CircuitSet.of(["s0/o0~s1/o0", "s1/o1~s2/o0"])
    flow = Flow("s0", "s2", "o0", SIZE)
    count = bench.start(flow, circuits=chain, others=SERVERS)
    bench.send(flow)
    run = bench.end(count)
    light = CountedTraffic(panel, [run]).bytes_of(run).by_light
    assert light == pytest.approx(SIZE, rel=1e-5)


# --- whole runs ----------------------------------------------------------------------------------


def result_of(
    policy: Policy,
    lit: Callable[[MemoryController], CircuitSet] = lambda controller: controller.lit,
    failures: RunFailures | None = None,
    wired: Fabric | None = None,
    spoil: Callable[[MemoryAgents], None] = lambda _: None,
) -> FabricResult:
    """Return the result of two iterations while `lit` carries light; `spoil` changes the agents."""
    wired = wired or fabric(scale=Scale(100))
    clock = VirtualClock(now_ns=10**12)
    controller = MemoryController(wired, policy, clock)
    agents = MemoryAgents(wired, lambda: lit(controller), clock)
    spoil(agents)
    executor = Executor(
        wired,
        policy,
        agents,
        {"r0": controller} if wired.optical else {},
        CircuitSet(),
        settings=RunSettings(arming_ns=6_000_000),
        instruments=instruments_in_memory(clock, counters=agents.counters),
    )
    operations: list[Operation] = [
        Reconfigure("forward", 0, DEMAND),
        Collective("dispatch", "forward", 0, DEMAND),
    ]
    runs: Sequence[IterationRun] = [executor.iteration(number, operations) for number in range(2)]
    return fabric_result(
        wired, "name", "policy", runs, cpu_idle=[0.5], remarks=[], failures=failures
    )


@pytest.mark.parametrize(
    ("policy", "wired"), [(MIXNET, None), (EpsOnly(), fabric(0, 2, scale=Scale(100)))]
)
def test_counted_bytes_of_an_undisturbed_run_equal_the_plan(
    policy: Policy, wired: Fabric | None
) -> None:
    result = result_of(policy, wired=wired)
    for collective in result.collectives:
        planned = collective.bytes_planned_by_light, collective.bytes_planned_by_eps
        assert sum(planned) == collective.bytes == 12 * SIZE
        counted = collective.bytes_by_light, collective.bytes_by_eps
        assert counted == pytest.approx(planned, rel=1e-6)
        assert collective.misrouted == []
    assert not [reason for reason in result.fidelity.reasons if "planned" in reason]


def test_run_with_deleted_light_rules_is_invalid_and_names_the_pair() -> None:
    def without_pair(controller: MemoryController) -> CircuitSet:
        between = controller.lit.between("s0", "s1")
        return CircuitSet(controller.lit.circuits - frozenset(between))

    result = result_of(MIXNET, without_pair)
    assert result.fidelity.verdict is Verdict.INVALID
    reasons = [reason for reason in result.fidelity.reasons if "planned" in reason]
    place = "r0: forward dispatch of layer 0, iteration 0"
    assert reasons[0] == f"{place}: s0 to s1 by o0: planned 26.5MB by light, counted 0B"
    first = result.collectives[0]
    assert first.bytes_planned_by_eps == 0
    assert first.bytes_by_eps == pytest.approx(2 * SIZE, rel=1e-5)
    assert first.bytes_by_light == pytest.approx(10 * SIZE, rel=1e-5)


def test_run_whose_flows_all_cross_one_spine_is_invalid_and_names_it() -> None:
    def by_one(agents: MemoryAgents) -> None:
        agents.counters.spine = "spine0"

    wired = replace(SPINES, scale=Scale(100))
    honest, cheated = (
        result_of(EpsOnly(), wired=wired),
        result_of(EpsOnly(), wired=wired, spoil=by_one),
    )
    assert not [reason for reason in honest.fidelity.reasons if "spine" in reason]
    assert cheated.fidelity.verdict is Verdict.INVALID
    reasons = [reason for reason in cheated.fidelity.reasons if "planned" in reason]
    place = "r0: forward dispatch of layer 0, iteration 0"
    assert reasons[0].startswith(
        f"{place}: s0 to s2, s0 to s3 and 2 more at leaf0 to spine1: planned"
    )
    assert any("leaf0 to spine0 carried" in reason for reason in reasons)
    assert not any(c.misrouted for c in honest.collectives)


def test_failure_may_move_flows() -> None:
    failure = FailureRecord(FailureKind.OCS, ("ocs0",), 0, 10**12 - 1)
    failures = RunFailures((failure,))
    result = result_of(MIXNET, lambda _: CircuitSet(), failures)
    first = result.collectives[0]
    assert first.failures == [0]
    assert first.misrouted == []
    assert "s0 to s1 by o0: planned 26.5MB by light, counted 0B" in first.moved_by_failure
    assert not [reason for reason in result.fidelity.reasons if "planned" in reason]


def test_rows_of_a_reading_are_the_nics_in_order() -> None:
    wired = fabric(1, 1)
    counters = MemoryPortCounters(wired)
    counters.count(PacedFlow("s1", "s2", "e0", 1000, None), CircuitSet())
    rows = [str(nic) for nic in counted_nics(wired)]
    octets = counters.read().bytes
    assert [rows[row] for row in np.flatnonzero(octets[:, SENT])] == ["s1/e0"]
    assert [rows[row] for row in np.flatnonzero(octets[:, RECEIVED])] == ["s2/e0"]
