"""Unmarked flows over the circuits of their pair and the EPS."""

from dataclasses import replace

from hypothesis import given

from moefabric.core.circuits import CircuitSet
from moefabric.core.forwarding import circuit_rules, spread_rules
from moefabric.core.nic import Nic
from moefabric.core.rules import Rule, direct_rules
from moefabric.core.topology import Fabric
from tests.support.fabrics import fabric, lit_fabrics

FOUR = fabric(3, 1)
LIT = CircuitSet.of(["s0/o0~s1/o2", "s0/o1~s1/o0", "s2/o0~s3/o0"])


def spread(unusable: str = "") -> dict[tuple[str, str], tuple[tuple[str, int], ...]]:
    out = frozenset(map(Nic.parse, unusable.split()))
    return {(rule.switch, rule.to): rule.spread for rule in spread_rules(FOUR, LIT, out)}


def test_flows_use_all_circuits_of_their_pair_and_a_share_of_the_eps() -> None:
    assert spread() == {
        ("s0", "s1"): (("s0/o0", 3), ("s0/o1", 3), ("s0/e0", 1)),
        ("s1", "s0"): (("s1/o0", 3), ("s1/o2", 3), ("s1/e0", 1)),
        ("s2", "s3"): (("s2/o0", 3), ("s2/e0", 1)),
        ("s3", "s2"): (("s3/o0", 3), ("s3/e0", 1)),
    }


def test_flows_keep_off_the_eps_if_an_end_has_lost_it() -> None:
    assert spread("s1/e0")["s0", "s1"] == (("s0/o0", 3), ("s0/o1", 3))
    assert spread("s3/e0")["s2", "s3"] == ()  # one circuit is left: no choice
    assert spread("s3/e0")["s0", "s1"] == spread()["s0", "s1"]


def test_another_electrical_nic_takes_the_place_of_a_failed_one() -> None:
    wide = fabric(1, 2)
    circuits = CircuitSet.of(["s0/o0~s1/o0"])
    used = [
        rule.spread[-1][0]
        for unusable in ("s0/e0", "s0/e1")
        for rule in spread_rules(wide, circuits, frozenset([Nic.parse(unusable)]))
        if rule.switch == "s0"
    ]
    assert used == ["s0/e1", "s0/e0"]


@given(lit_fabrics())
def test_spreading_changes_only_what_unmarked_packets_do(lit: tuple[Fabric, CircuitSet]) -> None:
    wired, circuits = lit

    def rules(*, spreads: bool) -> frozenset[Rule]:
        return circuit_rules(replace(wired, spreads_unmarked=spreads), circuits)

    marked = {rule for rule in rules(spreads=True) if rule.path}
    assert marked == {rule for rule in rules(spreads=False) if rule.path}
    matches = [{rule.match for rule in rules(spreads=spreads)} for spreads in (True, False)]
    assert matches[0] == matches[1]
    first = {rule.match: rule.out for rule in direct_rules(circuits)}
    for rule in rules(spreads=True):
        assert not rule.spread or rule.spread[0][0] == rule.out
        if rule.match in first:
            assert Nic.parse(rule.out) in circuits.nics
