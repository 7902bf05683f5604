"""Which groups switches get and lose."""

from moefabric.controller.southbound.openflow.spread_groups import SpreadGroups

ONE, TWO = ((2, 3), (5, 1)), ((2, 3), (3, 3), (5, 1))


def test_switch_gets_each_group_once_and_loses_it_when_no_rule_needs_it() -> None:
    groups = SpreadGroups()
    assert groups.add_missing("s0", [ONE, TWO, ONE]) == sorted([ONE, TWO])
    assert groups.add_missing("s0", [TWO]) == []
    assert groups.remove_unneeded("s0", [TWO]) == [ONE]
    assert groups.has_any("s0")
    assert groups.remove_unneeded("s0", []) == [TWO]
    assert not groups.has_any("s0")
    assert groups.add_missing("s0", [ONE]) == [ONE]


def test_number_always_stands_for_the_same_buckets() -> None:
    groups = SpreadGroups()
    first, second = groups.number(ONE), groups.number(TWO)
    assert first != second
    groups.add_missing("s0", [ONE])
    groups.remove_unneeded("s0", [])
    assert (groups.number(ONE), groups.number(TWO)) == (first, second)


def test_switch_that_connects_again_has_no_groups() -> None:
    groups = SpreadGroups()
    groups.add_missing("s0", [ONE])
    groups.add_missing("s1", [ONE])
    groups.forget("s0")
    assert groups.add_missing("s0", [ONE]) == [ONE]
    assert groups.add_missing("s1", [ONE]) == []
