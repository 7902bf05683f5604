"""Which groups switches get and lose (OpenFlow 1.3.5, 5.6)."""

from moefabric.controller.southbound.openflow import messages
from moefabric.controller.southbound.openflow.rule_messages import RuleMessages
from moefabric.core.rules import Rule
from moefabric.core.topology import Fabric
from tests.support.fabrics import fabric

FABRIC: Fabric = fabric(3, 1)
PORTS = FABRIC.openflow.ports("s0")
BOTH = ("s0/o0", 3), ("s0/e0", 1)
ALL = ("s0/o0", 3), ("s0/o1", 3), ("s0/e0", 1)
ONE, TWO = Rule("s0", "s1", "s0/o0", spread=BOTH), Rule("s0", "s2", "s0/o0", spread=ALL)
AGAIN = Rule("s0", "s3", "s0/o0", spread=BOTH)
FAR = Rule("s1", "s0", "s1/o0", spread=(("s1/o0", 3), ("s1/e0", 1)))


def buckets(rule: Rule) -> tuple[tuple[int, int], ...]:
    ports = FABRIC.openflow.ports(rule.switch)
    return tuple((ports[port], weight) for port, weight in rule.spread)


def sent(requests: list[tuple[bytes, Rule | str]]) -> list[bytes]:
    return [message for message, _ in requests]


def test_switch_gets_each_group_once_and_loses_it_when_no_rule_needs_it() -> None:
    encoder = RuleMessages(FABRIC, 1)
    first, second = sorted([buckets(ONE), buckets(TWO)])
    added = [messages.group_addition(1, first), messages.group_addition(2, second)]
    one, two = (1, 2) if first == buckets(ONE) else (2, 1)
    assert sent(encoder.missing_groups("s0", [ONE, TWO, AGAIN])) == added
    assert encoder.missing_groups("s0", [TWO]) == []
    assert sent(encoder.with_groups("s0", [], [], [TWO])) == [messages.group_deletion(one)]
    assert encoder.with_groups("s0", [], [], [TWO]) == []
    assert sent(encoder.with_groups("s0", [], [], [])) == [messages.group_deletion(two)]
    assert encoder.with_groups("s0", [], [], []) == []
    assert sent(encoder.missing_groups("s0", [ONE])) == [messages.group_addition(one, buckets(ONE))]


def test_groups_are_added_before_and_deleted_after_the_flow_mods() -> None:
    encoder = RuleMessages(FABRIC, 1)
    encoder.missing_groups("s0", [ONE])
    flow_mod = encoder.of_rule(TWO, add=True), TWO
    assert sent(encoder.with_groups("s0", [flow_mod], [TWO], [TWO])) == [
        messages.group_addition(2, buckets(TWO)),
        flow_mod[0],
        messages.group_deletion(1),
    ]


def test_switch_that_connects_again_has_no_groups() -> None:
    encoder = RuleMessages(FABRIC, 1)
    encoder.missing_groups("s0", [ONE])
    encoder.missing_groups("s1", [FAR])
    encoder.forget_groups("s0")
    assert len(encoder.missing_groups("s0", [ONE, FAR])) == 1
    assert encoder.missing_groups("s1", [ONE, FAR]) == []
