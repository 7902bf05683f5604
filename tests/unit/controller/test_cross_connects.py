"""Changes of cross-connects: minimal, and free of port conflicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.controller.southbound.ocs.cross_connects import (
    CrossConnectChange,
    PortConflictError,
    RequestedChange,
    difference,
    plan_change,
)
from moefabric.core.ocs import CrossConnectMode

N = 6


@pytest.mark.parametrize(
    ("mode", "change"),
    [
        pytest.param(
            CrossConnectMode.UPDATE, CrossConnectChange(((1, 7), (3, 9)), ((1, 9),)), id="update"
        ),
        pytest.param(
            CrossConnectMode.OVERWRITE,
            CrossConnectChange(((1, 7), (2, 8), (3, 9)), ((1, 9),)),
            id="overwrite",
        ),
    ],
)
def test_plan_change_removes_conflicting_cross_connects(
    mode: CrossConnectMode, change: CrossConnectChange
) -> None:
    current = ((1, 7), (2, 8), (3, 9), (4, 10))
    assert plan_change(current, RequestedChange(kept=((4, 10),), setup=((1, 9),)), mode) == change


def test_safe_mode_refuses_conflicts() -> None:
    with pytest.raises(PortConflictError, match=r"1-9 busy: 1-7 connected; ocs\.mode: update "):
        plan_change(((1, 7),), RequestedChange(setup=((1, 9),)), CrossConnectMode.SAFE)


@st.composite
def matchings(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    outputs = draw(st.permutations(range(N + 1, 2 * N + 1)))
    return tuple(pair for pair in zip(range(1, N + 1), outputs, strict=True) if draw(st.booleans()))


@given(
    matchings(), matchings(), st.sampled_from([CrossConnectMode.UPDATE, CrossConnectMode.OVERWRITE])
)
def test_plan_change_reaches_any_matching_without_a_conflict(
    current: tuple[tuple[int, int], ...],
    target: tuple[tuple[int, int], ...],
    mode: CrossConnectMode,
) -> None:
    change = plan_change(current, RequestedChange(setup=target), mode)
    left = set(current) - set(change.remove)
    assert set(change.remove) <= set(current)
    assert not {p for p, _ in left} & {p for p, _ in change.add}
    assert not {q for _, q in left} & {q for _, q in change.add}
    after = change.applied_to(current)
    assert set(target) <= after
    assert mode is CrossConnectMode.UPDATE or after == set(target)
    assert not plan_change(tuple(after), RequestedChange(setup=target), mode), (
        "a repeated request changes something"
    )


@given(matchings(), matchings())
def test_difference_is_the_smallest_change(
    now: tuple[tuple[int, int], ...], then: tuple[tuple[int, int], ...]
) -> None:
    change = difference(now, then)
    assert change.applied_to(now) == set(then)
    assert not set(change.remove) & set(change.add)
