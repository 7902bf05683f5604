"""Contradictions between demand, orders and reports, in every kind of work that sends bytes."""

from collections.abc import Sequence

import numpy as np
import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow, FlowRecord
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.results.parts import CollectiveResult
from moefabric.results.records.counted_traffic import CountedTraffic
from moefabric.results.records.records import CollectiveRun, IterationRun, RunFailures
from moefabric.results.verdict.fabric_result import uncounted_findings
from moefabric.results.verdict.measurements import FabricMeasurements
from moefabric.results.verdict.reasons import UNCOUNTED
from moefabric.simulator.fluid import predict
from moefabric.workload.iterations.iteration import AllReduce, Collective, Transfer
from moefabric.workload.iterations.tasks import BackgroundTransfer, Sent, owed_bytes
from tests.support.fabrics import fabric

WIRED = fabric(0, 2, regions=(2,), scale=Scale(100))
SIZE = 1e6
FLOWS = (Flow("s0", "s1", "e0", SIZE / 2), Flow("s0", "s1", "e1", SIZE / 2))
PAIRS = (("s0", "s1"),)
DEMAND = DemandMatrix(("s0", "s1"), np.array([[0, SIZE], [0, 0]]))
WORK = [
    pytest.param(Collective("dispatch", "forward", 0, DEMAND), id="collective"),
    pytest.param(Transfer("forward", PAIRS, SIZE), id="activations"),
    pytest.param(Transfer("forward", PAIRS * 2, SIZE / 2), id="twice-the-same-pair"),
    pytest.param(AllReduce(3, PAIRS, SIZE), id="all-reduce"),
    pytest.param(BackgroundTransfer(FLOWS, 1.0), id="background"),
]


def measurements(
    work: Sent, planned: Sequence[Flow], sent: Sequence[Flow], received: float = 1.0
) -> FabricMeasurements:
    """Return the measurements of an iteration that sends once.

    Args:
        work: The work that sends.
        planned: The flows that agents were ordered to send.
        sent: The flows that they report.
        received: Share of these bytes that receivers report.
    """
    wired: Fabric = WIRED
    records = []
    for number, flow in enumerate(sent):
        size = wired.scale.size_bytes(flow.bytes)
        record = FlowRecord(
            number, flow.src, flow.dst, flow.path, size, round(received * size), None, 0, 9, 1, 10,
            retransmits=0, ok=True,
        )  # fmt: skip
        records.append(record)
    prediction = predict(wired, CircuitSet(), planned)
    run = CollectiveRun(
        0, work, prediction, tuple(planned), tuple(records), 0, flows_s=(1.0,) * len(planned)
    )
    is_collective = isinstance(work, Collective)
    iteration = IterationRun(
        0, 0, collectives=[run] * is_collective, transfers=[run] * (not is_collective)
    )
    traffic = CountedTraffic(wired, [run])
    return FabricMeasurements.of(wired, iteration, RunFailures(), traffic, set())


def contradictions(
    work: Sent, planned: Sequence[Flow], sent: Sequence[Flow], received: float = 1.0
) -> list[str]:
    return measurements(work, planned, sent, received).contradictions


@pytest.mark.parametrize("work", WORK)
def test_bytes_that_work_owes_and_agents_report_agree(work: Sent) -> None:
    assert sum(size for _, _, size in owed_bytes(work)) == SIZE
    assert contradictions(work, FLOWS, FLOWS) == []


@pytest.mark.parametrize("work", WORK)
def test_half_of_the_owed_bytes_contradicts_the_demand(work: Sent) -> None:
    half = [Flow(f.src, f.dst, f.path, f.bytes / 2) for f in FLOWS]
    [wrong] = contradictions(work, half, half)
    assert wrong.endswith("s0 sent 5000 bytes to s1; the demand is 10000")
    assert work.kind in wrong


@pytest.mark.parametrize("work", WORK)
def test_other_bytes_than_ordered_name_sender_receiver_and_path(work: Sent) -> None:
    half = [FLOWS[0], Flow("s0", "s1", "e1", SIZE / 4)]
    wrong = contradictions(work, FLOWS, half)
    assert any("s0 sent 2500 bytes to s1 by e1, not the 5000 ordered" in one for one in wrong)


@pytest.mark.parametrize("work", WORK)
def test_bytes_that_did_not_arrive_name_their_receiver(work: Sent) -> None:
    wrong = contradictions(work, FLOWS, FLOWS, received=0.9)
    assert any("s1 received 4500 bytes of the 5000 of s0 by e0" in one for one in wrong)


def test_bytes_alone_of_a_sum_within_a_region_are_judged() -> None:
    timed, untimed = (AllReduce(3, PAIRS, SIZE, is_timed=is_timed) for is_timed in (True, False))
    assert set(measurements(timed, FLOWS, FLOWS).errors) >= {"all-reduce", "flow"}
    errors = measurements(untimed, FLOWS, FLOWS).errors
    assert not [kind for kind in ("all-reduce", "flow") if errors[kind].values]
    assert contradictions(untimed, FLOWS, FLOWS[:1]) != []


def test_bytes_that_no_port_counted_are_said_to_be_uncounted() -> None:
    counted = CollectiveResult(kind="dispatch", measured_s=1.0, bytes_by_light=0, bytes_by_eps=9)
    nobody = counted.model_copy(update={"bytes_by_light": None, "bytes_by_eps": None})
    assert list(uncounted_findings([nobody, nobody])) == list(UNCOUNTED.judge())
    assert list(uncounted_findings([nobody, counted])) == [], "a loss cut one off"
    assert list(uncounted_findings([])) == []
