"""Cross-connects that go and come: the least of them, in an order in which no port is ever wanted twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.southbound.crossconnects import Moves, ObstacleError, Wanted, between, moves
from moefabric.ocs_control import Mode

N = 6


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        pytest.param(Mode.UPDATE, Moves(((1, 7), (3, 9)), ((1, 9),)), id="update"),
        pytest.param(Mode.OVERWRITE, Moves(((1, 7), (2, 8), (3, 9)), ((1, 9),)), id="overwrite"),
    ],
)
def test_what_is_in_the_way_goes(mode: Mode, told: Moves) -> None:
    joined = ((1, 7), (2, 8), (3, 9), (4, 10))
    assert moves(joined, Wanted(kept=((4, 10),), into=((1, 9),)), mode) == told


def test_to_be_safe_is_to_refuse_what_is_in_the_way() -> None:
    with pytest.raises(ObstacleError, match="1-9 busy"):
        moves(((1, 7),), Wanted(into=((1, 9),)), Mode.SAFE)


def test_ports_of_others_are_not_overwritten() -> None:
    joined = ((1, 7), (5, 12), (6, 11))
    assert moves(joined, Wanted(into=((2, 8),)), Mode.OVERWRITE, own={1, 2, 7, 8}) == Moves(
        ((1, 7),), ((2, 8),)
    )


@st.composite
def matchings(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    outputs = draw(st.permutations(range(N + 1, 2 * N + 1)))
    return tuple(pair for pair in zip(range(1, N + 1), outputs, strict=True) if draw(st.booleans()))


@given(matchings(), matchings(), st.sampled_from([Mode.UPDATE, Mode.OVERWRITE]))
def test_any_matching_is_reached_from_any_other_without_a_conflict(
    joined: tuple[tuple[int, int], ...], target: tuple[tuple[int, int], ...], mode: Mode
) -> None:
    told = moves(joined, Wanted(into=target), mode)
    left = set(joined) - set(told.out)
    assert set(told.out) <= set(joined)
    assert not {p for p, _ in left} & {p for p, _ in told.into}
    assert not {q for _, q in left} & {q for _, q in told.into}
    after = told.after(joined)
    assert set(target) <= after
    assert mode is Mode.UPDATE or after == set(target)
    assert not moves(tuple(after), Wanted(into=target), mode), "the same twice moves something"


@given(matchings(), matchings())
def test_the_way_between_two_is_the_least(
    now: tuple[tuple[int, int], ...], then: tuple[tuple[int, int], ...]
) -> None:
    told = between(now, then)
    assert told.after(now) == set(then)
    assert not set(told.out) & set(told.into)
