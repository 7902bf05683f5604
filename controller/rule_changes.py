"""Changes of rules applied in the order that makes no loop, also if switches are absent."""

from collections.abc import Sequence

from moefabric.core.errors import ControlError, UnconfirmedError
from moefabric.core.forwarding import tree_marks
from moefabric.core.protocols import PacketSwitches
from moefabric.core.rules import RuleChange


def apply_changes(switches: PacketSwitches, changes: Sequence[RuleChange]) -> None:
    """Apply changes one after the other, as `moefabric.core.forwarding.rule_changes` requires.

    A switch that doesn't confirm may still forward by a tree's old rules. No other switch gets new
    rules of that tree then, unless the switch is no longer part of it.

    Raises:
        ControlError: if a switch doesn't confirm; the others have their rules by then.
    """
    errors, unsafe = list[str](), frozenset[str]()
    for number, change in enumerate(changes):
        if unsafe:
            safe = frozenset(rule for rule in change.add if rule.path not in unsafe)
            change = RuleChange(change.delete, safe)  # noqa: PLW2901 - what is left of it
        try:
            switches.apply(change)
        except UnconfirmedError as error:
            errors.append(str(error))
            absent = error.switches
            old = (rule for rule in change.delete if rule.switch in absent)
            new = (r for later in changes[number + 1 :] for r in later.add if r.switch in absent)
            unsafe |= tree_marks(old) & tree_marks(new)
    if errors:
        raise ControlError("; ".join(dict.fromkeys(errors)))
