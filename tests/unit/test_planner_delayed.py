"""Light that comes later: all bytes go, all ends together, and nobody is worse off for starting before it is there."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controller.planner import delayed, water
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split, flows
from moefabric.fluid import predict
from moefabric.topology import Fabric
from tests.fabrics import circuit_sets, fabric, fabrics

SERVERS = ("s0", "s1", "s2", "s3")
TENTH = 0.1 * 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in 100 ms."""
OLD, NEW = CircuitSet.of(["s0/o0~s2/o0"]), CircuitSet.of(["s0/o0~s1/o0"])


def demand(*pairs: tuple[int, int, float]) -> DemandMatrix:
    rows = [[0.0] * 4 for _ in range(4)]
    for a, b, tenths in pairs:
        rows[a][b] = tenths * TENTH
    return DemandMatrix(SERVERS, rows)


@pytest.mark.parametrize(
    ("owed", "lit", "target", "after_s", "seconds"),
    [
        pytest.param(demand((0, 1, 1)), OLD, NEW, 0.030, 0.065, id="eps-first-then-both"),
        pytest.param(demand((0, 1, 1)), OLD, NEW, 0.0, 0.05, id="light-at-once"),
        pytest.param(demand((0, 1, 1)), OLD, NEW, 0.2, 0.1, id="light-too-late-to-help"),
        pytest.param(demand((0, 1, 1)), OLD, NEW, float("inf"), 0.1, id="light-that-never-comes"),
        pytest.param(demand((0, 1, 1)), NEW, NEW, 0.030, 0.05, id="light-that-stays"),
        pytest.param(demand((0, 1, 1), (0, 2, 1)), OLD, NEW, 0.030, 0.115, id="old-light-goes-dark"),
        pytest.param(demand(), OLD, NEW, 0.030, 0.0, id="nothing-owed"),
    ],
)
def test_bytes_start_by_the_eps_and_end_with_the_light_there_is(
    owed: DemandMatrix, lit: CircuitSet, target: CircuitSet, after_s: float, seconds: float
) -> None:
    """One optical and one electrical NIC a server; a tenth of a second of bytes for one NIC."""
    assert delayed.moved(fabric(1, 1), owed, lit, target, after_s).seconds == pytest.approx(seconds)


def test_the_split_says_what_goes_now_and_what_goes_later() -> None:
    plan = delayed.moved(fabric(1, 1), demand((0, 1, 1)), OLD, NEW, 0.030)
    [now], [later] = plan.now, plan.later
    assert (now.src, now.dst, now.light_bytes) == ("s0", "s1", 0.0)
    assert now.eps_bytes == pytest.approx(0.65 * TENTH)
    assert later.light_bytes == pytest.approx(0.35 * TENTH)
    assert later.eps_bytes == 0
    assert (plan.kept, plan.new, plan.moves) == (CircuitSet(), NEW, True)


@pytest.mark.parametrize(
    ("after_s", "moves", "seconds"),
    [pytest.param(0.03, True, 0.165, id="soon"), pytest.param(0.15, False, 0.2, id="late")],
)
def test_light_is_moved_at_the_start_only_where_that_ends_sooner(
    after_s: float, moves: bool, seconds: float
) -> None:
    """What is lit serves one pair, what is wanted the other, which owes twice as much."""
    owed = demand((0, 1, 2), (0, 2, 1))
    plan = delayed.soonest(fabric(1, 1), owed, OLD, NEW, after_s)
    assert (plan.moves, bool(plan.later.shares)) == (moves, moves)
    assert plan.seconds == pytest.approx(seconds)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Fabric, DemandMatrix, CircuitSet, CircuitSet]:
    """A fabric of one region, what its servers owe, what is lit and what is wanted."""
    wired = draw(fabrics())
    assume(len(wired.regions) == 1)
    n = len(wired.servers)
    cells = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0]), min_size=n * n, max_size=n * n))
    owed = DemandMatrix(wired.servers, np.array(cells).reshape(n, n) * TENTH)
    return wired, owed, draw(circuit_sets(wired)), draw(circuit_sets(wired))


AFTER = st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0])


@given(changes(), AFTER)
@settings(max_examples=60)
def test_every_byte_goes_once(
    change: tuple[Fabric, DemandMatrix, CircuitSet, CircuitSet], after_s: float
) -> None:
    wired, owed, lit, target = change
    plan = delayed.soonest(wired, owed, lit, target, after_s)
    sent = np.zeros((len(owed.servers),) * 2)
    for split in (plan.now, plan.later):
        for share in split:
            assert min(share.light_bytes, share.eps_bytes) >= 0
            sent[owed.servers.index(share.src), owed.servers.index(share.dst)] += (
                share.light_bytes + share.eps_bytes
            )
    np.fill_diagonal(sent, np.diag(owed.array))
    assert sent == pytest.approx(owed.array, rel=1e-9, abs=1.0)


@given(changes(), AFTER)
@settings(max_examples=60)
def test_no_link_carries_more_than_it_can_in_the_time_it_has(
    change: tuple[Fabric, DemandMatrix, CircuitSet, CircuitSet], after_s: float
) -> None:
    wired, owed, lit, target = change
    plan = delayed.moved(wired, owed, lit, target, after_s)
    early = predict(wired, plan.kept, flows(wired, plan.kept, plan.now)).seconds
    late = predict(wired, plan.new, flows(wired, plan.new, plan.later)).seconds
    assert early <= plan.seconds * (1 + 1e-6)
    assert late <= max(0.0, plan.seconds - after_s) * (1 + 1e-6) + 1e-9


@given(changes())
@settings(max_examples=60)
def test_light_that_never_comes_is_no_worse_than_none(
    change: tuple[Fabric, DemandMatrix, CircuitSet, CircuitSet],
) -> None:
    wired, owed, lit, target = change
    alone = delayed.stayed(wired, owed, CircuitSet()).seconds
    plan = delayed.moved(wired, owed, lit, target, float("inf"))
    assert plan.seconds <= alone * (1 + 1e-9)
    assert not plan.later.shares


@given(changes())
@settings(max_examples=60)
def test_light_at_once_is_water(change: tuple[Fabric, DemandMatrix, CircuitSet, CircuitSet]) -> None:
    wired, owed, lit, target = change
    plan = delayed.moved(wired, owed, lit, target, 0.0)
    assert _by_light(plan.now, plan.later) == pytest.approx(
        _by_light(water.parted(wired, owed, target)), rel=1e-9, abs=1.0
    )


@given(changes(), AFTER, AFTER)
@settings(max_examples=60)
def test_later_light_never_ends_sooner(
    change: tuple[Fabric, DemandMatrix, CircuitSet, CircuitSet], one: float, other: float
) -> None:
    wired, owed, lit, target = change
    sooner, later = (
        delayed.moved(wired, owed, lit, target, after_s).seconds for after_s in sorted((one, other))
    )
    assert sooner <= later * (1 + 1e-9)


@given(changes(), AFTER)
@settings(max_examples=60)
def test_diverting_ends_no_later_than_waiting_or_than_staying(
    change: tuple[Fabric, DemandMatrix, CircuitSet, CircuitSet], after_s: float
) -> None:
    wired, owed, lit, target = change
    plan = delayed.soonest(wired, owed, lit, target, after_s)
    waits = after_s + delayed.stayed(wired, owed, target).seconds
    assert plan.seconds <= min(waits, delayed.stayed(wired, owed, lit).seconds) * (1 + 1e-9)


def _by_light(*splits: Split) -> float:
    return sum(split.light_bytes for split in splits)
