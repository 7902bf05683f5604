"""The flow-mods of rules, which are encoded once and sent many times."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import count

from moefabric.controller.southbound.openflow import messages
from moefabric.controller.southbound.openflow.flow_entries import flow_entry, ordered_rules
from moefabric.controller.southbound.openflow.messages import Buckets
from moefabric.core.rules import Rule, RuleChange
from moefabric.core.topology import Fabric

Request = tuple[bytes, Rule | str]
"""A message to a switch, and its rule or a description for errors."""


class RuleMessages:
    """Encodes rules and changes of rules for the switches of a fabric.

    Args:
        cookie: Marks the entries of this controller.
    """

    def __init__(self, fabric: Fabric, cookie: int) -> None:
        self._fabric, self._cookie = fabric, cookie
        self._group_numbers = defaultdict[Buckets, int](count(1).__next__)
        """Number of each group, which stands for the same buckets on every switch."""
        self._present: defaultdict[str, set[Buckets]] = defaultdict(set)  # groups by switch
        self.of_rule = lru_cache(maxsize=None)(self._of_rule)
        """Returns the flow-mod that adds or deletes a rule's entry, and keeps it."""
        self.of_change: Callable[[RuleChange], dict[str, list[Request]]]
        """Returns the flow-mods of a change, and keeps them for the next call."""
        self.of_change = lru_cache(maxsize=1)(self._of_change)

    def _of_change(self, change: RuleChange) -> dict[str, list[Request]]:
        """Return the flow-mods of a change by switch, in the order of `ordered_rules`."""
        return {
            switch: [(self.of_rule(rule, add=add), rule) for rule, add in rules]
            for switch, rules in sorted(ordered_rules(self._fabric, change).items())
        }

    def _of_rule(self, rule: Rule, *, add: bool) -> bytes:
        """Return the flow-mod that adds or deletes a rule's entry."""
        entry = flow_entry(self._fabric, rule)
        group = self._group_numbers[entry.buckets] if entry.buckets else None
        return messages.addition(entry, self._cookie, group) if add else messages.deletion(entry)

    # --- groups that flows are spread by ---------------------------------------------------------

    def forget_groups(self, switch: str) -> None:
        """Forget the groups of a switch, which has none now."""
        self._present.pop(switch, None)

    def with_groups(
        self, switch: str, requests: Iterable[Request], added: Iterable[Rule], rules: Iterable[Rule]
    ) -> list[Request]:
        """Add the additions and deletions of groups to the flow-mods of a change.

        Args:
            added: The rules that the change adds.
            rules: All rules after the change.
        """
        missing = self.missing_groups(switch, added)
        return [*missing, *requests, *self._unneeded_groups(switch, rules)]

    def missing_groups(self, switch: str, rules: Iterable[Rule]) -> list[Request]:
        """Return the group-mods that add the groups of rules which a switch doesn't have."""
        present = self._present[switch]
        missing = sorted(self._buckets(switch, rules) - present)
        present.update(missing)
        add, what = messages.group_addition, f"{switch}: a group"
        return [(add(self._group_numbers[buckets], buckets), what) for buckets in missing]

    def _unneeded_groups(self, switch: str, rules: Iterable[Rule]) -> list[Request]:
        """Return the group-mods that delete the groups which no rule of a switch needs any more."""
        if not (present := self._present[switch]):
            return []
        unneeded = sorted(present - self._buckets(switch, rules))
        present.difference_update(unneeded)
        delete, what = messages.group_deletion, f"{switch}: end of a group"
        return [(delete(self._group_numbers[buckets]), what) for buckets in unneeded]

    def _buckets(self, switch: str, rules: Iterable[Rule]) -> set[Buckets]:
        spread = (rule for rule in rules if rule.spread and rule.switch == switch)
        return {flow_entry(self._fabric, rule).buckets for rule in spread}
