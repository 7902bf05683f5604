"""Consolidated flows carry the same bytes in fewer flows, over NICs that are no fuller."""

import json
from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.flows import Flow, Share, consolidated_flows, flows
from moefabric.simulator.fluid import predict
from tests.support.fabrics import fabric
from tests.support.paths import EXAMPLES


def evenly(owed: Sequence[Sequence[float]], nics: int) -> tuple[Flow, ...]:
    wired = fabric(0, nics, regions=(len(owed),))
    shares = [
        Share(f"s{i}", f"s{j}", 0.0, size)
        for i, row in enumerate(owed)
        for j, size in enumerate(row)
        if i != j and size
    ]
    return flows(wired, CircuitSet(), shares)


def test_measured_matrix_needs_a_seventh_of_the_flows() -> None:
    gating = json.loads((EXAMPLES / "data/gating-8x8.json").read_text())
    even = evenly(gating["num_global_tokens_per_expert"], 8)
    few = consolidated_flows(fabric(0, 8, regions=(8,)), even)
    assert (len(even), len(few)) == (448, 63)


@given(
    st.integers(2, 6).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 50), min_size=n, max_size=n), min_size=n, max_size=n
        )
    ),
    st.integers(1, 8),
)
def test_consolidated_flows_keep_bytes_and_completion_time(
    owed: list[list[int]], nics: int
) -> None:
    even = evenly([[float(size) for size in row] for row in owed], nics)
    wired = fabric(0, nics, regions=(len(owed),))
    few = consolidated_flows(wired, even)
    before, after = (
        defaultdict[tuple[str, str], float](float),
        defaultdict[tuple[str, str], float](float),
    )
    for total, listed in ((before, even), (after, few)):
        for flow in listed:
            total[flow.src, flow.dst] += flow.bytes
    assert after == pytest.approx(before)
    assert len(few) <= len(even)
    longest = predict(wired, CircuitSet(), even).seconds
    assert predict(wired, CircuitSet(), few).seconds <= longest * (1 + 1e-6)


def test_consolidated_flows_leave_optical_flows_alone() -> None:
    lit = Flow("s0", "s1", "o0", 100.0)
    few = consolidated_flows(
        fabric(1, 2),
        (
            lit,
            Flow("s0", "s2", "e0", 50.0),
            Flow("s0", "s2", "e1", 50.0),
            Flow("s1", "s3", "e0", 1.0),
            Flow("s1", "s3", "e1", 1.0),
        ),
    )
    assert lit in few
    assert len(few) == 1 + 2 + 1


def test_flows_between_several_leaves_are_not_consolidated() -> None:
    wired = fabric(0, 4, eps=Eps(2, 2))
    even = flows(wired, CircuitSet(), [Share("s0", "s1", 0, 8.0), Share("s0", "s3", 0, 8.0)])
    assert consolidated_flows(wired, even) == even
