"""Pieces of background flows: rates of the model over time, without a byte too many or too few."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.flows import Flow
from moefabric.prediction.hybrid_jobs import RatedFlow, average, pieces

FLOW = Flow("s0", "s1", "e0", 3e9)


def rated(*parts: tuple[float, float], start_s: float = 0.0) -> RatedFlow:
    """Return a flow with parts of so many seconds and bytes a second."""
    changes, instant_s, size = [], start_s, 0.0
    for seconds, rate in parts:
        changes.append((instant_s, 8 * rate))
        instant_s += seconds
        size += seconds * rate
    return RatedFlow(Flow("s0", "s1", "e0", size), changes, instant_s)


def test_flow_of_one_rate_is_one_piece() -> None:
    [piece] = pieces([rated((2.0, 1e9), start_s=5.0)], 5.0)
    assert (piece.after_s, piece.seconds) == (0.0, 2.0)
    assert [flow.bytes for flow in piece.flows] == [2e9]


def test_each_rate_is_a_piece() -> None:
    first, second = pieces([rated((1.0, 1e9), (1.0, 2e9))], 0.0)
    assert (first.after_s, first.seconds, first.flows[0].bytes) == (0.0, 1.0, 1e9)
    assert (second.after_s, second.seconds, second.flows[0].bytes) == (1.0, 1.0, 2e9)


def test_small_and_late_rate_changes_make_no_piece() -> None:
    [piece] = pieces([rated((1.0, 1e9), (1.0, 1.02e9), (0.01, 5e9))], 0.0)
    assert piece.flows[0].bytes == pytest.approx(2.07e9)


def test_flows_that_start_and_end_together_are_one_piece() -> None:
    [piece] = pieces([rated((1.0, 1e9)), rated((1.01, 2e9))], 0.0)
    assert len(piece.flows) == 2


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(1e6, 1e9)), min_size=1, max_size=6))
def test_pieces_have_all_bytes_and_follow_each_other(parts: list[tuple[float, float]]) -> None:
    flow = rated(*parts)
    division = pieces([flow], 0.0)
    assert sum(one.bytes for piece in division for one in piece.flows) == pytest.approx(
        flow.flow.bytes
    )
    assert sum(piece.seconds for piece in division) == pytest.approx(flow.end_s)


def test_average_has_all_bytes_of_a_way_at_one_rate() -> None:
    piece = average([rated((1.0, 1e9)), rated((1.0, 2e9), start_s=3.0)], 10.0)
    assert piece.seconds == 10.0
    assert [flow.bytes for flow in piece.flows] == [3e9]
