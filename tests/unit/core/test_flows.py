"""A split becomes flows on NICs and conserves its bytes."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow, Share, Split, flows
from moefabric.core.topology import Fabric
from tests.support.fabrics import fabric, lit_fabrics

sizes = st.integers(0, 10**12).map(float)


@st.composite
def splits(draw: st.DrawFn) -> tuple[Fabric, CircuitSet, Split]:
    """Shares between any servers of a lit fabric; by light only where there is some."""
    wired, lit = draw(lit_fabrics())
    shares = [
        Share(a, b, draw(sizes) if lit.between(a, b) else 0.0, draw(sizes))
        for a in wired.servers
        for b in draw(st.lists(st.sampled_from(wired.servers), unique=True, max_size=3))
        if a != b
    ]
    return wired, lit, Split(tuple(shares))


@given(splits())
def test_flows_conserve_the_bytes_of_a_split(case: tuple[Fabric, CircuitSet, Split]) -> None:
    wired, lit, split = case
    light: defaultdict[tuple[str, str], float] = defaultdict(float)
    eps: defaultdict[tuple[str, str], float] = defaultdict(float)
    for flow in flows(wired, lit, split):
        (light if flow.is_optical else eps)[flow.src, flow.dst] += flow.bytes
    for share in split:
        assert light[share.src, share.dst] == pytest.approx(share.light_bytes)
        assert eps[share.src, share.dst] == pytest.approx(share.eps_bytes)


@given(splits())
def test_flows_are_not_empty_and_leave_by_a_nic_of_the_sender(
    case: tuple[Fabric, CircuitSet, Split],
) -> None:
    wired, lit, split = case
    for flow in flows(wired, lit, split):
        assert flow.bytes > 0
        assert flow.path.partition(".")[0] in {nic.path for nic in wired.nics(flow.src)}


def test_flows_spread_bytes_over_circuits_and_electrical_nics() -> None:
    wired = fabric(3, 2)
    lit = CircuitSet.of(["s0/o0~s1/o2", "s0/o2~s1/o1"])
    assert flows(wired, lit, [Share("s1", "s0", 10, 6)]) == (
        Flow("s1", "s0", "o2", 5),
        Flow("s1", "s0", "o1", 5),
        Flow("s1", "s0", "e0", 3),
        Flow("s1", "s0", "e1", 3),
    )


def test_flows_refuse_optical_bytes_without_a_circuit() -> None:
    with pytest.raises(ValueError, match="s0 has no circuit to s1 for 10 bytes by light"):
        flows(fabric(), CircuitSet(), [Share("s0", "s1", 10, 0)])


def test_flows_refuse_eps_bytes_without_an_electrical_nic() -> None:
    with pytest.raises(ValueError, match="s0 has no electrical NIC for 10 bytes to s1"):
        flows(fabric(3, 0), CircuitSet(), [Share("s0", "s1", 0, 10)])


def test_split_sums_optical_and_eps_bytes() -> None:
    split = Split((Share("s0", "s1", 10, 1), Share("s1", "s0", 20, 2)))
    assert (split.light_bytes, split.eps_bytes) == (30, 3)
