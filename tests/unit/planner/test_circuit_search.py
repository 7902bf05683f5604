"""The search for circuits that meet a deadline: what it expects of exchanges, and what it finds."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.planner.arrays import Ints, circuit_counts
from moefabric.planner.circuit_search import CircuitSearch, _exchanges, _Lateness
from moefabric.planner.pair_order import affordable_pairs
from moefabric.planner.waterfill import EpsLinks

Start = tuple[CircuitSearch, Ints]
DEADLINE_S = 2.0


def start(seed: int, pods: int) -> Start:
    """Return a search among some servers whose EPS is too slow, and circuits to start from."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(3, 7))
    owed = draw.uniform(0.0, 9.0, (n, n)) * (draw.random((n, n)) < 0.7)
    np.fill_diagonal(owed, 0.0)
    ports, rates = draw.integers(0, 4, n), draw.uniform(0.5, 2.0, n)
    uplinks = draw.uniform(0.5, 4.0, pods if pods > 1 else 0)
    links = EpsLinks(draw.uniform(0.5, 2.0, n), np.arange(n) % pods, uplinks)
    pairs = [tuple(pair) for pair in draw.permutation(list(combinations(range(n), 2)) * 2)]
    counts = circuit_counts(n, affordable_pairs(pairs[: 2 * n], ports.tolist()))
    return CircuitSearch.of(owed, ports, rates, links), counts


STARTS = st.builds(start, st.integers(0, 10_000), st.integers(1, 3))


def late_bytes(search: CircuitSearch, lit: Ints) -> float:
    """Return the bytes that are late, counted on each link of the EPS."""
    links, n = search.links, len(search.ports)
    excess = np.maximum(search.owed - search.rates * lit * DEADLINE_S, 0.0)[:n, :n]
    return float(np.maximum(links.loads(excess) - links.budget * DEADLINE_S, 0.0).sum())


@given(STARTS)
def test_bytes_late_after_an_exchange_are_those_of_the_exchanged_circuits(case: Start) -> None:
    search, counts = case
    lit = search._with_dark_nics(counts)
    state = _Lateness.of(search, lit, DEADLINE_S)
    exchanges = _exchanges(state.gains(), lit)
    expected = []
    for i, j, x, y in exchanges.T.tolist():
        after = lit.copy()
        for a, b, change in ((i, x, -1), (j, y, -1), (i, j, 1), (x, y, 1)):
            after[a, b] += change
            after[b, a] += change
        assert after.min() >= 0
        assert not after[:-1, :-1].diagonal().any()
        assert (after[:-1].sum(axis=1) == search.ports).all()
        expected.append(late_bytes(search, after))
    assert state.late_bytes_after(exchanges) == pytest.approx(np.array(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("circuits", "deadline_s", "late", "gain"),
    [
        # The NIC carries 2 of 9 bytes, and a circuit 2 more.
        pytest.param(0, 2.0, 7.0, 2.0, id="a-circuit-is-full"),
        pytest.param(2, 2.0, 3.0, 2.0, id="two-circuits-are-full"),
        pytest.param(3, 2.0, 1.0, 1.0, id="a-circuit-carries-more-than-is-late"),
        pytest.param(0, 5.0, 4.0, 4.0, id="a-circuit-could-carry-five"),
        pytest.param(4, 2.0, 0.0, 0.0, id="nothing-is-late"),
    ],
)
def test_lateness_of_one_pair(circuits: int, deadline_s: float, late: float, gain: float) -> None:
    """One server owes another 9 bytes; NICs carry a byte a second."""
    search = CircuitSearch.of(
        np.array([[0.0, 9.0], [0.0, 0.0]]), np.array([4, 4]), 1.0, EpsLinks.one_leaf(np.ones(2))
    )
    lit = search._with_dark_nics(np.array([[0, circuits], [circuits, 0]]))
    assert lit[-1].tolist() == lit[:, -1].tolist() == [4 - circuits, 4 - circuits, 0]
    state = _Lateness.of(search, lit, deadline_s)
    assert state.late_bytes == pytest.approx(2 * late), "late at the sender and at the receiver"
    assert state.gains() == pytest.approx(np.array([[0, gain, 0], [gain, 0, 0], [0, 0, 0]]))


def test_late_uplinks_gain_from_circuits_between_pods() -> None:
    """Two pods of two servers; the uplinks carry half a byte a second and the NICs are fast."""
    owed = np.zeros((4, 4))
    owed[0, 1], owed[0, 2] = 5.0, 4.0
    links = EpsLinks(np.full(4, 9.0), np.array([0, 0, 1, 1]), np.full(2, 0.5))
    search = CircuitSearch.of(owed, np.ones(4, dtype=np.int64), 1.0, links)
    state = _Lateness.of(search, search._with_dark_nics(np.zeros((4, 4), dtype=np.int64)), 2.0)
    assert state.late_bytes == pytest.approx(2 * (4.0 - 1.0))
    gains = np.zeros((5, 5))
    gains[0, 2] = gains[2, 0] = 2.0
    assert state.gains() == pytest.approx(gains)


@given(STARTS, st.integers(0, 8))
def test_search_finds_circuits_that_fit_and_are_no_later(case: Start, steps: int) -> None:
    search, counts = case
    found = search.run(counts, DEADLINE_S, steps)
    assert (found == found.T).all()
    assert found.min() >= 0
    assert not found.diagonal().any()
    assert (found.sum(axis=1) <= search.ports).all()
    before, after = (late_bytes(search, search._with_dark_nics(lit)) for lit in (counts, found))
    assert after <= before + 1e-9


def test_search_without_steps_returns_its_start() -> None:
    search, counts = start(1, 1)
    assert search.run(counts, DEADLINE_S, 0).tolist() == counts.tolist()


def test_search_exchanges_circuits_of_pairs_that_owe_nothing() -> None:
    """Circuits between 0 and 1 and between 2 and 3 serve nobody: 0 owes 2, and 1 owes 3."""
    owed = np.zeros((4, 4))
    owed[0, 2] = owed[1, 3] = 4.0
    idle, useful = (circuit_counts(4, pairs) for pairs in ([(0, 1), (2, 3)], [(0, 2), (1, 3)]))
    search = CircuitSearch.of(owed, np.ones(4, dtype=np.int64), 1.0, EpsLinks.one_leaf(np.ones(4)))
    assert search.run(idle, DEADLINE_S, 1).tolist() == useful.tolist()
    assert len(search.visited) == 1
    assert search.run(idle, DEADLINE_S, 9).tolist() == idle.tolist(), "it has been there before"
    assert search.run(0 * idle, DEADLINE_S, 2).tolist() == useful.tolist(), "from dark NICs"
    assert search.run(idle, 4.5, 9).tolist() == idle.tolist(), "the EPS carries all by then"
