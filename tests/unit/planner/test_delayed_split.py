"""Delayed splits send every byte once, end together, and are never later than waiting."""

from math import inf

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import flows
from moefabric.core.topology import Fabric
from moefabric.planner.delayed_split import best_split, split_during_move, split_without_move
from moefabric.planner.waterfill import optimal_split
from moefabric.simulator.fluid import predict
from tests.support.fabrics import circuit_sets, fabric, fabrics

SERVERS = ("s0", "s1", "s2", "s3")
TENTH = 0.1 * 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in 100 ms."""
OLD, NEW = CircuitSet.of(["s0/o0~s2/o0"]), CircuitSet.of(["s0/o0~s1/o0"])

Change = tuple[Fabric, DemandMatrix, CircuitSet, CircuitSet]


def demand(*pairs: tuple[int, int, float]) -> DemandMatrix:
    rows = [[0.0] * 4 for _ in range(4)]
    for a, b, tenths in pairs:
        rows[a][b] = tenths * TENTH
    return DemandMatrix(SERVERS, rows)


@pytest.mark.parametrize(
    ("owed", "current", "target", "after_s", "seconds"),
    [
        pytest.param(demand((0, 1, 1)), OLD, NEW, 0.030, 0.065, id="eps-first-then-both"),
        pytest.param(demand((0, 1, 1)), OLD, NEW, 0.0, 0.05, id="circuit-at-once"),
        pytest.param(demand((0, 1, 1)), OLD, NEW, 0.2, 0.1, id="circuit-too-late-to-help"),
        pytest.param(demand((0, 1, 1)), OLD, NEW, inf, 0.1, id="circuit-that-never-comes"),
        pytest.param(demand((0, 1, 1)), NEW, NEW, 0.030, 0.05, id="circuit-that-stays"),
        pytest.param(
            demand((0, 1, 1), (0, 2, 1)), OLD, NEW, 0.030, 0.115, id="old-circuit-goes-dark"
        ),
        pytest.param(demand(), OLD, NEW, 0.030, 0.0, id="no-demand"),
    ],
)
def test_bytes_start_over_the_eps_and_end_over_the_new_circuit(
    owed: DemandMatrix, current: CircuitSet, target: CircuitSet, after_s: float, seconds: float
) -> None:
    """One optical and one electrical NIC a server; a tenth of a second of bytes for one NIC."""
    split = split_during_move(fabric(1, 1), owed, current, target, after_s)
    assert split.seconds == pytest.approx(seconds)


def test_split_during_move_parts_bytes_into_now_and_later() -> None:
    split = split_during_move(fabric(1, 1), demand((0, 1, 1)), OLD, NEW, 0.030)
    [now], [later] = split.now, split.later
    assert (now.src, now.dst, now.light_bytes) == ("s0", "s1", 0.0)
    assert now.eps_bytes == pytest.approx(0.65 * TENTH)
    assert later.light_bytes == pytest.approx(0.35 * TENTH)
    assert later.eps_bytes == 0
    assert (split.kept, split.new, split.moves) == (CircuitSet(), NEW, True)


def test_new_circuit_carries_nothing_of_what_a_kept_circuit_carries() -> None:
    """Over the EPS, the last pair takes two tenths of a second, and the first pair could wait."""
    both = CircuitSet.of(["s0/o0~s1/o0", "s0/o1~s1/o1"])
    split = split_during_move(fabric(2, 1), demand((0, 1, 1), (2, 3, 2)), NEW, both, 0.030)
    assert [(s.src, s.light_bytes / TENTH, s.eps_bytes / TENTH) for s in split.now] == [
        ("s0", pytest.approx(1.0), 0.0),
        ("s2", 0.0, pytest.approx(2.0)),
    ]
    assert (split.kept, str(split.new), split.later.shares) == (NEW, "s0/o1~s1/o1", ())


def test_split_without_move_waits_for_nothing() -> None:
    split = split_without_move(fabric(1, 1), demand((0, 1, 1), (0, 2, 1)), OLD)
    assert (split.after_s, split.kept, split.moves) == (0.0, OLD, False)
    assert split.seconds == pytest.approx(0.1)


def test_best_split_keeps_circuits_if_others_end_no_sooner() -> None:
    split = best_split(fabric(1, 1), demand((2, 3, 1)), OLD, NEW, 0.030)
    assert (split.kept, split.moves) == (OLD, False)


@pytest.mark.parametrize(
    ("after_s", "moves", "seconds"),
    [pytest.param(0.03, True, 0.165, id="soon"), pytest.param(0.15, False, 0.2, id="late")],
)
def test_best_split_reconfigures_only_if_that_ends_sooner(
    after_s: float, moves: bool, seconds: float
) -> None:
    """The old circuit serves one pair, the new one the other, which owes twice as much."""
    split = best_split(fabric(1, 1), demand((0, 1, 2), (0, 2, 1)), OLD, NEW, after_s)
    assert (split.moves, bool(split.later.shares)) == (moves, moves)
    assert split.seconds == pytest.approx(seconds)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """A fabric of one region, its demand, its current circuits and its target."""
    wired = draw(fabrics())
    assume(len(wired.regions) == 1)
    n = len(wired.servers)
    cells = st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0])
    flat = draw(st.lists(cells, min_size=n * n, max_size=n * n))
    owed = DemandMatrix(wired.servers, np.array(flat).reshape(n, n) * TENTH)
    return wired, owed, draw(circuit_sets(wired)), draw(circuit_sets(wired))


AFTER_S = st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0])


@given(changes(), AFTER_S)
def test_best_split_sends_every_byte_once(change: Change, after_s: float) -> None:
    wired, owed, current, target = change
    split = best_split(wired, owed, current, target, after_s)
    sent = np.zeros((len(owed.servers),) * 2)
    for share in (*split.now, *split.later):
        assert min(share.light_bytes, share.eps_bytes) >= 0
        cell = owed.servers.index(share.src), owed.servers.index(share.dst)
        sent[cell] += share.light_bytes + share.eps_bytes
    np.fill_diagonal(sent, np.diag(owed.array))
    assert sent == pytest.approx(owed.array, rel=1e-9, abs=1.0)


@given(changes(), AFTER_S)
def test_no_link_carries_more_than_it_can_in_its_time(change: Change, after_s: float) -> None:
    wired, owed, current, target = change
    split = split_during_move(wired, owed, current, target, after_s)
    early = predict(wired, split.kept, flows(wired, split.kept, split.now)).seconds
    late = predict(wired, split.new, flows(wired, split.new, split.later)).seconds
    assert early <= split.seconds * (1 + 1e-6)
    assert late <= max(0.0, split.seconds - after_s) * (1 + 1e-6) + 1e-9


@given(changes())
def test_circuits_that_never_come_are_no_worse_than_none(change: Change) -> None:
    wired, owed, current, target = change
    alone = split_without_move(wired, owed, CircuitSet()).seconds
    split = split_during_move(wired, owed, current, target, inf)
    assert split.seconds <= alone * (1 + 1e-9)
    assert not split.later.shares


@given(changes())
def test_circuits_at_once_give_the_optimal_split(change: Change) -> None:
    wired, owed, current, target = change
    split = split_during_move(wired, owed, current, target, 0.0)
    optimal = optimal_split(wired, owed, target)
    light_bytes = split.now.light_bytes + split.later.light_bytes
    assert light_bytes == pytest.approx(optimal.light_bytes, rel=1e-9, abs=1.0)


@given(changes(), AFTER_S, AFTER_S)
def test_later_circuits_never_end_sooner(change: Change, one_s: float, other_s: float) -> None:
    wired, owed, current, target = change
    sooner, later = (
        split_during_move(wired, owed, current, target, after_s).seconds
        for after_s in sorted((one_s, other_s))
    )
    assert sooner <= later * (1 + 1e-9)


@given(changes(), AFTER_S)
def test_best_split_ends_no_later_than_waiting_or_staying(change: Change, after_s: float) -> None:
    wired, owed, current, target = change
    waiting = after_s + split_without_move(wired, owed, target).seconds
    staying = split_without_move(wired, owed, current).seconds
    split = best_split(wired, owed, current, target, after_s)
    assert split.seconds <= min(waiting, staying) * (1 + 1e-9)
