"""Circuits are matchings; a change of light is what differs between two of them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.circuits import Circuit, CircuitConflictError, CircuitSet, cross_connects, seen_circuits
from moefabric.topology import Fabric, Kind, Nic
from tests.fabrics import MESH, circuit_sets, fabric, fabrics, lit_fabrics

ends = st.builds(
    Nic, st.sampled_from([f"s{i}" for i in range(12)]), st.just(Kind.OPTICAL), st.integers(0, 15)
)
circuits = (
    st.tuples(ends, ends)
    .filter(lambda pair: pair[0].server != pair[1].server)
    .map(lambda pair: Circuit(*pair))
)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Fabric, CircuitSet, CircuitSet]:
    wired = draw(fabrics())
    return wired, draw(circuit_sets(wired)), draw(circuit_sets(wired))


@given(circuits)
def test_a_circuit_is_read_as_it_is_written(circuit: Circuit) -> None:
    assert Circuit.parse(str(circuit)) == circuit


@given(ends, ends)
def test_a_circuit_is_the_same_from_either_end(a: Nic, b: Nic) -> None:
    if a.server != b.server:
        assert Circuit(a, b) == Circuit(b, a)
        assert hash(Circuit(a, b)) == hash(Circuit(b, a))


def test_the_lesser_nic_comes_first_whichever_was_given_first() -> None:
    assert str(Circuit.parse("s3/o2~s0/o0")) == "s0/o0~s3/o2"
    assert Circuit.parse("s3/o2~s0/o0").pair == ("s0", "s3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("s0/o0", "'s0/o0' is not a circuit such as s0/o0~s3/o2", id="one-end"),
        pytest.param("s0/o0~s1", "'s1' is not a NIC", id="half-a-nic"),
        pytest.param("s0/o0~s0/o1", "both ends are on s0", id="one-server"),
        pytest.param("s0/o0~s0/o0", "both ends are on s0", id="one-nic"),
        pytest.param("s0/o0~s1/e0", "s1/e0 is not an optical NIC", id="electrical-end"),
        pytest.param("s0/o0~s1/o0~s2/o0", "'s1/o0~s2/o0' is not a NIC", id="three-ends"),
    ],
)
def test_what_is_no_circuit_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Circuit.parse(text)


def test_a_nic_that_would_end_two_circuits_is_named() -> None:
    with pytest.raises(
        CircuitConflictError, match=r"^more than one circuit would end at s0/o0, s1/o0$"
    ) as told:
        CircuitSet.of(["s0/o0~s1/o0", "s0/o0~s2/o0", "s1/o0~s3/o0"])
    assert list(map(str, told.value.clashing)) == ["s0/o0", "s1/o0"]


def test_the_circuits_of_a_pair_are_found_from_both_sides_in_order() -> None:
    lit = CircuitSet.of(["s0/o1~s1/o0", "s0/o0~s1/o1", "s0/o2~s2/o0"])
    assert list(map(str, lit.between("s1", "s0"))) == ["s0/o0~s1/o1", "s0/o1~s1/o0"]
    assert lit.between("s0", "s1") == lit.between("s1", "s0")
    assert lit.between("s1", "s2") == ()


def test_light_is_printed_in_order_and_its_absence_in_words() -> None:
    assert str(CircuitSet.of(["s2/o0~s1/o0", "s0/o0~s3/o0"])) == "s0/o0~s3/o0 s1/o0~s2/o0"
    assert str(CircuitSet()) == "no light"
    assert len(CircuitSet.of(MESH)) == 6


def test_only_what_differs_moves() -> None:
    change = CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"]).towards(
        CircuitSet.of(["s2/o0~s3/o0", "s0/o0~s2/o1"])
    )
    assert str(change.teardown) == "s0/o0~s1/o0"
    assert str(change.kept) == "s2/o0~s3/o0"
    assert str(change.setup) == "s0/o0~s2/o1"
    assert not change.empty


@given(changes())
def test_a_transition_reaches_its_target(change: tuple[Fabric, CircuitSet, CircuitSet]) -> None:
    _, before, after = change
    moved = before.towards(after)
    assert (before.circuits - moved.teardown.circuits) | moved.setup.circuits == after.circuits
    assert moved.kept.circuits | moved.setup.circuits == after.circuits


@given(changes())
def test_teardown_kept_and_setup_share_nothing_and_leave_nothing_out(
    change: tuple[Fabric, CircuitSet, CircuitSet],
) -> None:
    _, before, after = change
    parts = before.towards(after)
    assert len(parts.teardown) + len(parts.kept) + len(parts.setup) == len(before.circuits | after.circuits)
    assert parts.teardown.circuits | parts.kept.circuits == before.circuits
    assert parts.empty == (before == after)


def test_a_circuit_is_two_simplex_cross_connects() -> None:
    made = fabric()
    connects = cross_connects(made, made.regions[0], CircuitSet.of(["s0/o0~s3/o2"]))
    assert connects == ((1, 24), (12, 13)), "input 1 to the output of port 12, 12 + 12, and back"


def test_an_ocs_counts_its_own_ports_in_every_region() -> None:
    made = fabric(2, 1, regions=(2, 2))
    assert cross_connects(made, made.regions[1], CircuitSet.of(["s2/o1~s3/o0"])) == ((2, 7), (3, 6))


@given(lit_fabrics())
def test_what_an_ocs_was_told_is_what_it_shows(given_light: tuple[Fabric, CircuitSet]) -> None:
    wired, lit = given_light
    for region in wired.regions:
        mine = CircuitSet(frozenset(c for c in lit if c.a.server in region.servers))
        assert seen_circuits(wired, region, cross_connects(wired, region, mine)) == mine


@pytest.mark.parametrize(
    ("connects", "seen"),
    [
        pytest.param([(1, 16)], "no light", id="one-direction-only"),
        pytest.param([(1, 16), (4, 13)], "s0/o0~s1/o0", id="both-directions"),
        pytest.param([(1, 14), (2, 13)], "no light", id="one-server"),
        pytest.param([(1, 13)], "no light", id="looped-back"),
    ],
)
def test_only_light_between_two_servers_both_ways_is_a_circuit(
    connects: list[tuple[int, int]], seen: str
) -> None:
    made = fabric()
    assert str(seen_circuits(made, made.regions[0], connects)) == seen
