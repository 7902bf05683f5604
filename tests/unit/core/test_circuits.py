"""Circuit sets are matchings; a transition is the difference of two of them."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import (
    Circuit,
    CircuitConflictError,
    CircuitSet,
    circuits_from_cross_connects,
    cross_connects,
)
from moefabric.core.nic import Nic, NicKind
from moefabric.core.topology import Fabric, nic_at, ocs_port
from tests.support.fabrics import MESH, circuit_sets, fabric, fabrics, lit_fabrics

ends = st.builds(
    Nic, st.sampled_from([f"s{i}" for i in range(12)]), st.just(NicKind.OPTICAL), st.integers(0, 15)
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
def test_circuit_parse_inverts_str(circuit: Circuit) -> None:
    assert Circuit.parse(str(circuit)) == circuit


@given(circuits)
def test_circuit_is_equal_from_either_end(circuit: Circuit) -> None:
    turned = Circuit(circuit.b, circuit.a)
    assert turned == circuit
    assert hash(turned) == hash(circuit)


def test_circuit_puts_the_lesser_nic_first() -> None:
    assert str(Circuit.parse("s3/o2~s0/o0")) == "s0/o0~s3/o2"
    assert Circuit.parse("s3/o2~s0/o0").pair == ("s0", "s3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("s0/o0", "'s0/o0' is not a circuit such as s0/o0~s3/o2", id="one-end"),
        pytest.param("s0/o0~s1", "s3/o2: 's1' is not a NIC", id="half-a-nic"),
        pytest.param("s0/o0~s0/o1", "both ends are on s0", id="one-server"),
        pytest.param("s0/o0~s0/o0", "both ends are on s0", id="one-nic"),
        pytest.param("s0/o0~s1/e0", "s1/e0 is not an optical NIC", id="electrical-end"),
        pytest.param("s0/o0~s1/o0~s2/o0", "'s1/o0~s2/o0' is not a NIC", id="three-ends"),
    ],
)
def test_circuit_parse_refuses_other_text(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Circuit.parse(text)


def test_circuit_set_names_nics_that_would_end_two_circuits() -> None:
    with pytest.raises(
        CircuitConflictError, match=r"^more than one circuit would end at s0/o0, s1/o0$"
    ) as error:
        CircuitSet.of(["s0/o0~s1/o0", "s0/o0~s2/o0", "s1/o0~s3/o0"])
    assert list(map(str, error.value.nics)) == ["s0/o0", "s1/o0"]


def test_between_finds_circuits_from_either_server_sorted() -> None:
    lit = CircuitSet.of(["s0/o1~s1/o0", "s0/o0~s1/o1", "s0/o2~s2/o0"])
    assert list(map(str, lit.between("s1", "s0"))) == ["s0/o0~s1/o1", "s0/o1~s1/o0"]
    assert lit.between("s0", "s1") == lit.between("s1", "s0")
    assert lit.between("s1", "s2") == ()


def test_circuit_set_text_is_sorted() -> None:
    assert str(CircuitSet.of(["s2/o0~s1/o0", "s0/o0~s3/o0"])) == "s0/o0~s3/o0 s1/o0~s2/o0"
    assert str(CircuitSet()) == "no light"
    assert len(CircuitSet.of(MESH)) == 6


def test_transition_moves_only_what_differs() -> None:
    change = CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"]).transition_to(
        CircuitSet.of(["s2/o0~s3/o0", "s0/o0~s2/o1"])
    )
    assert str(change.teardown) == "s0/o0~s1/o0"
    assert str(change.kept) == "s2/o0~s3/o0"
    assert str(change.setup) == "s0/o0~s2/o1"
    assert not change.is_empty


@given(changes())
def test_transition_reaches_its_target(change: tuple[Fabric, CircuitSet, CircuitSet]) -> None:
    _, before, after = change
    moved = before.transition_to(after)
    assert (before.circuits - moved.teardown.circuits) | moved.setup.circuits == after.circuits
    assert moved.kept.circuits | moved.setup.circuits == after.circuits


@given(changes())
def test_transition_partitions_the_circuits(change: tuple[Fabric, CircuitSet, CircuitSet]) -> None:
    _, before, after = change
    parts = before.transition_to(after)
    assert len(parts.teardown) + len(parts.kept) + len(parts.setup) == len(
        before.circuits | after.circuits
    )
    assert parts.teardown.circuits | parts.kept.circuits == before.circuits
    assert parts.is_empty == (before == after)


def test_circuit_is_two_simplex_cross_connects() -> None:
    wired = fabric()
    connects = cross_connects(wired, wired.regions[0], CircuitSet.of(["s0/o0~s3/o2"]))
    assert connects == ((1, 24), (12, 13)), "input 1 to the output of port 12, 12 + 12, and back"


def test_cross_connects_count_each_ocs_s_own_ports() -> None:
    wired = fabric(2, 1, regions=(2, 2))
    assert cross_connects(wired, wired.regions[1], CircuitSet.of(["s2/o1~s3/o0"])) == (
        (2, 7),
        (3, 6),
    )


def test_slice_of_an_ocs_begins_at_its_first_port() -> None:
    wired = fabric(2, 1, regions=(2, 2))
    region = wired.regions[1]
    assert region.ocs is not None
    region = replace(region, ocs=replace(region.ocs, ports=10, first_port=5))
    wired = replace(wired, regions=(wired.regions[0], region))
    lit = CircuitSet.of(["s2/o1~s3/o0"])
    connects = cross_connects(wired, region, lit)
    assert connects == ((6, 17), (7, 16)), "the slice has inputs 5 to 8, and outputs 15 to 18"
    of_others = (1, 12), (2, 11), (5, 12)
    assert circuits_from_cross_connects(wired, region, (*connects, *of_others)) == lit
    nics = [str(nic_at(wired, region, port)) for port in range(4, 10)]
    assert nics == ["None", "s2/o0", "s2/o1", "s3/o0", "s3/o1", "None"]
    assert nic_at(wired, region, 17) == nic_at(wired, region, 7)
    assert [ocs_port(wired, nic) for nic in wired.optical_nics("s3")] == [7, 8]


@given(lit_fabrics())
def test_circuits_from_cross_connects_inverts_cross_connects(
    given_light: tuple[Fabric, CircuitSet],
) -> None:
    wired, lit = given_light
    for region in wired.regions:
        own = CircuitSet(frozenset(c for c in lit if c.a.server in region.servers))
        assert (
            circuits_from_cross_connects(wired, region, cross_connects(wired, region, own)) == own
        )


@pytest.mark.parametrize(
    ("connects", "circuits_text"),
    [
        pytest.param([(1, 16)], "no light", id="one-direction-only"),
        pytest.param([(1, 16), (4, 13)], "s0/o0~s1/o0", id="both-directions"),
        pytest.param([(1, 14), (2, 13)], "no light", id="one-server"),
        pytest.param([(1, 13)], "no light", id="looped-back"),
    ],
)
def test_circuit_needs_both_directions_between_two_servers(
    connects: list[tuple[int, int]], circuits_text: str
) -> None:
    wired = fabric()
    assert str(circuits_from_cross_connects(wired, wired.regions[0], connects)) == circuits_text
