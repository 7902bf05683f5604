"""Bytes and rates of the transfers that agents are ordered."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow
from moefabric.core.units import QueueLimit, Scale
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.policy import EpsOnly
from moefabric.planner.sending.flow_pacing import (
    LEAST_HEADROOM,
    LIMITED_HEADROOM,
    MOST_HEADROOM,
    pace_bps,
    planned_flows,
)
from moefabric.planner.sending.partial_offload import plan_partial_offload
from moefabric.planner.sending.task_flows import TaskFlows, region_by_server
from moefabric.simulator.fluid import predict_regions
from tests.support.fabrics import fabric

BURST = 8 * 1500
SERVERS = ("s0", "s1", "s2", "s3")
EVERYONE = DemandMatrix(SERVERS, 1e6 * (1 - np.eye(4)))


def test_flow_is_paced_to_end_with_its_region() -> None:
    wired = fabric(0, 1, scale=Scale(500))
    planned = (Flow("s0", "s1", "e0", 12.5e9 * 0.4), Flow("s2", "s3", "e0", 12.5e9 * 0.1))
    lit = CircuitSet()
    predictions = predict_regions(wired, lit, planned)
    paced = TaskFlows(wired, planned, lit, predictions, region_by_server(wired.ep_groups)).paced()
    wall_s = 0.4 * 1514 / 1448
    assert [flow.bytes for flow in paced] == [10_000_000, 2_500_000]
    assert [flow.rate_bps for flow in paced] == pytest.approx(
        [LEAST_HEADROOM * 8 * 10e6 / wall_s, (1 + BURST / 2.5e6) * 8 * 2.5e6 / wall_s]
    )


@given(st.integers(BURST + 1, 10**9))
def test_flow_exceeds_its_planned_rate_by_a_frame_in_all_within_bounds(size: int) -> None:
    """More would wait in the queue of a full link, where each flow has two frames at most."""
    pace = pace_bps(fabric(), size, 1.0)
    assert pace is not None
    headroom, frame = pace / (8 * size), BURST / size
    assert 1 < LEAST_HEADROOM - 1e-9 <= headroom <= MOST_HEADROOM + 1e-9
    if LEAST_HEADROOM - 1 < frame < MOST_HEADROOM - 1:
        assert headroom == pytest.approx(1 + frame)


@pytest.mark.parametrize(("greedy", "count"), [(False, 12), (True, 36)])
def test_greedy_flows_stay_on_all_nics(greedy: bool, count: int) -> None:
    wired, lit = fabric(0, 3), CircuitSet()
    sent = planned_flows(wired, EpsOnly(), EVERYONE, lit, greedy=greedy)
    offload = plan_partial_offload(
        wired, EpsOnly(), EVERYONE, lit, {}, {"r0": SERVERS}, greedy=greedy
    )
    assert offload is not None
    assert len(sent) == len(offload.early.flows) == count
    assert sum(flow.bytes for flow in sent) == pytest.approx(12e6)


def test_flows_are_paced_unless_they_are_to_be_greedy() -> None:
    wired, lit = fabric(0, 3), CircuitSet()
    sent = planned_flows(wired, EpsOnly(), EVERYONE, lit)
    offload = plan_partial_offload(wired, EpsOnly(), EVERYONE, lit, {}, {"r0": SERVERS})
    assert offload is not None
    assert len(sent) == len(offload.early.flows) == 12


def test_partial_offload_ends_on_the_circuits_of_its_policy() -> None:
    wired, lit = fabric(2, 1), CircuitSet.of(["s0/o0~s1/o0"])
    demand = DemandMatrix(SERVERS, 1e9 * np.kron(np.eye(2), 1 - np.eye(2)))
    offload = plan_partial_offload(wired, MIXNET, demand, lit, {"r0": 1e-3}, {"r0": SERVERS})
    assert offload is not None
    assert offload.parts["r0"].kept == lit
    assert offload.target("r0") == MIXNET.circuits(wired, wired.regions[0], demand, lit)


@pytest.mark.parametrize(("size", "waits"), [(1, False), (BURST, False), (BURST + 1, True)])
def test_single_burst_has_no_pace(size: int, waits: bool) -> None:
    """A few bytes paced over a collective would block their connection for minutes."""
    assert (pace_bps(fabric(), size, 0.7) is not None) == waits


def test_flows_and_acknowledgements_fit_into_links_with_short_queues() -> None:
    limited = replace(fabric(), queue=QueueLimit(20))
    acknowledgements = 66 / (2 * 1514)
    pace = pace_bps(limited, 1_000_000, 1.0)
    assert pace == LIMITED_HEADROOM * 8e6
    assert LIMITED_HEADROOM + acknowledgements < 1
    assert pace_bps(limited, 1500, 1.0) is None, "one packet"
    assert pace_bps(limited, 1501, 1.0) is not None, "two packets"


@given(st.integers(1, 10**9), st.floats(0.05, 10.0), st.sampled_from([1500, 9000]))
def test_no_connection_waits_longer_than_the_collective_for_a_burst(
    size: int, wall_s: float, mtu: int
) -> None:
    rate = pace_bps(replace(fabric(), mtu=mtu), size, wall_s)
    assert rate is None or 8 * 8 * mtu / rate <= wall_s
