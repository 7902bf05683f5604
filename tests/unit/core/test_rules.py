"""Rules: what each matches, where it points, and the smallest change between two sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.rules import (
    Rule,
    RuleChange,
    direct_rules,
    eps_rules,
    eps_rules_to,
    server_rules,
)
from moefabric.core.topology import Fabric
from tests.support.fabrics import fabric, fabrics, lit_fabrics

rules = st.builds(
    Rule,
    st.sampled_from(["s0", "s1"]),
    st.sampled_from(["s2", "*"]),
    st.sampled_from(["s0/o0", "s0/o1", "s0/e0"]),
    st.sampled_from([None, "o0", "e0"]),
    st.booleans(),
)


@st.composite
def rule_sets(draw: st.DrawFn) -> frozenset[Rule]:
    """Rules as a switch can hold them: one for each match."""
    return frozenset({rule.match: rule for rule in draw(st.lists(rules, max_size=12))}.values())


def applied(now: frozenset[Rule], change: RuleChange) -> frozenset[Rule]:
    """Return the rules of a switch after a change: deletion is by match, additions replace."""
    deleted = {rule.match for rule in change.delete}
    held = {rule.match: rule for rule in now if rule.match not in deleted}
    return frozenset((held | {rule.match: rule for rule in change.add}).values())


@given(rule_sets(), rule_sets())
def test_rule_change_reaches_its_target(now: frozenset[Rule], target: frozenset[Rule]) -> None:
    assert applied(now, RuleChange.between(now, target)) == target


@given(rule_sets(), rule_sets())
def test_rule_change_never_deletes_a_match_that_it_adds(
    now: frozenset[Rule], target: frozenset[Rule]
) -> None:
    change = RuleChange.between(now, target)
    assert not {rule.match for rule in change.delete} & {rule.match for rule in change.add}


@given(rule_sets(), rule_sets())
def test_rule_change_leaves_common_rules_alone(
    now: frozenset[Rule], target: frozenset[Rule]
) -> None:
    change = RuleChange.between(now, target)
    assert not (change.delete | change.add) & (now & target)


@given(rule_sets())
def test_rule_change_between_equal_rules_is_empty(now: frozenset[Rule]) -> None:
    assert RuleChange.between(now, now) == RuleChange(frozenset(), frozenset())


def test_rule_change_replaces_a_rule_of_the_same_match_in_one_step() -> None:
    old, new = Rule("s0", "s1", "s0/o0", light=True), Rule("s0", "s1", "s0/o1", light=True)
    assert RuleChange.between([old], [new]) == RuleChange(frozenset(), frozenset({new}))


def test_direct_rules_take_marked_and_unmarked_packets_in_both_directions() -> None:
    assert direct_rules(CircuitSet.of(["s0/o0~s3/o2"])) == {
        Rule("s0", "s3", "s0/o0", "o0", light=True),
        Rule("s0", "s3", "s0/o0", None, light=True),
        Rule("s3", "s0", "s3/o2", "o2", light=True),
        Rule("s3", "s0", "s3/o2", None, light=True),
    }


def test_direct_rules_send_unmarked_packets_over_the_first_circuit() -> None:
    rules = direct_rules(CircuitSet.of(["s0/o1~s1/o0", "s0/o0~s1/o1"]))
    assert {str(rule) for rule in rules if rule.path is None} == {
        "s0: to s1 by s0/o0 (light)",
        "s1: to s0 by s1/o1 (light)",
    }
    assert {str(rule) for rule in rules if rule.switch == "s0" and rule.path} == {
        "s0: to s1 on o0 by s0/o0 (light)",
        "s0: to s1 on o1 by s0/o1 (light)",
    }


def test_server_rules_reach_the_host_and_the_eps() -> None:
    wired = fabric(3, 1, regions=(2,))
    assert server_rules(wired, wired.regions[0]) == {
        Rule("s0", "s0", "host"),
        Rule("s0", "*", "s0/e0"),
        Rule("s1", "s1", "host"),
        Rule("s1", "*", "s1/e0"),
    }


def test_server_rules_without_electrical_nics_reach_only_the_host() -> None:
    wired = fabric(3, 0, regions=(2,))
    assert server_rules(wired, wired.regions[0]) == {
        Rule("s0", "s0", "host"),
        Rule("s1", "s1", "host"),
    }
    assert eps_rules(wired) == frozenset()


def test_marked_packets_keep_to_nics_of_their_number_up_and_down() -> None:
    wired = fabric(1, 2, regions=(2,))
    assert {str(rule) for rule in server_rules(wired, wired.regions[0]) if rule.switch == "s0"} == {
        "s0: to s0 by host",
        "s0: to * by s0/e0",
        "s0: to s1 by s0/e1",
        "s0: to * on e0 by s0/e0",
        "s0: to * on e1 by s0/e1",
        "s0: to * on o0 by s0/e0",
    }
    assert {str(rule) for rule in eps_rules(wired) if rule.to == "s1"} == {
        "leaf0: to s1 by s1/e1",
        "leaf0: to s1 on e0 by s1/e0",
        "leaf0: to s1 on e1 by s1/e1",
        "leaf0: to s1 on o0 by s1/e0",
    }


def test_eps_rules_reach_another_leaf_through_a_spine() -> None:
    wired = fabric(1, 1, eps=Eps(servers_per_leaf=2, spines=2))
    assert {str(rule) for rule in eps_rules(wired) if rule.to == "s3"} == {
        "leaf0: to s3 by spine1",
        "leaf1: to s3 by s3/e0",
        "leaf1: to s3 on e0.0 by s3/e0",
        "leaf1: to s3 on e0.1 by s3/e0",
        "spine0: to s3 by leaf1",
        "spine1: to s3 by leaf1",
    }
    assert {str(rule) for rule in eps_rules(wired) if rule.to == "*"} == {
        f"leaf{leaf}: to * on e0.{spine} by spine{spine}" for leaf in (0, 1) for spine in (0, 1)
    }


def test_only_leaves_of_a_region_change_rules_for_a_server_that_is_relayed() -> None:
    wired = fabric(1, 1, regions=(3,) * 32, eps=Eps(servers_per_leaf=4, spines=2))
    before = eps_rules_to(wired, "s3", {})  # on leaf0, the others of its region on leaf1
    broken = wired.without_nics(wired.electrical_nics("s3"))
    change = RuleChange.between(before, eps_rules_to(broken, "s3", {"s3": "s4"}))
    assert {rule.switch for rule in change.add} == {"leaf0", "leaf1", "spine0", "spine1"}
    assert "leaf0: to s3 by spine1" in map(str, change.add)
    assert "leaf1: to s3 by s4/e0" in map(str, change.add)
    elsewhere = [rule for rule in eps_rules(wired) if rule.switch == "leaf7"]
    assert {rule.to for rule in elsewhere} >= {"r0", "r1", "r31"}
    assert not {"s0", "s3"} & {rule.to for rule in elsewhere}


@given(fabrics())
def test_every_rule_points_at_a_port_of_its_switch(wired: Fabric) -> None:
    every = eps_rules(wired)
    for region in wired.regions:
        every |= server_rules(wired, region)
    assert {rule.out in wired.openflow.ports(rule.switch) for rule in every} == {True}


@given(lit_fabrics())
def test_direct_rules_have_unique_matches_and_point_at_lit_nics(
    given_light: tuple[Fabric, CircuitSet],
) -> None:
    _, lit = given_light
    every = direct_rules(lit)
    assert len({rule.match for rule in every}) == len(every)
    ends = {str(nic) for circuit in lit for nic in (circuit.a, circuit.b)}
    assert {rule.out for rule in every} == ends


@pytest.mark.parametrize("electrical", [1, 4])
def test_no_switch_has_two_rules_of_one_match(electrical: int) -> None:
    wired = fabric(3, electrical, regions=(4, 4), eps=Eps(servers_per_leaf=2, spines=2))
    every = eps_rules(wired).union(*(server_rules(wired, region) for region in wired.regions))
    assert len({rule.match for rule in every}) == len(every)
