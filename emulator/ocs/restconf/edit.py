"""Edits as pure functions from the content of a container to its new content."""

from copy import deepcopy
from enum import Enum
from functools import reduce
from typing import Any

from moefabric.emulator.ocs.restconf.errors import RestconfError, absent
from moefabric.emulator.ocs.restconf.schema import Node
from moefabric.emulator.ocs.restconf.target import Step, Target

Tree = dict[str, Any]


class Op(Enum):
    """Kinds of edits, with their HTTP methods (RFC 8040, section 4)."""

    MERGE = "PATCH"
    REPLACE = "PUT"
    CREATE = "POST"
    DELETE = "DELETE"


def apply_edit(before: Tree, op: Op, target: Target, value: Any = None) -> Tree:
    """Return the content of the target's container after an edit.

    Args:
        before: the content before it.
        op: kind of the edit.
        target: the edited resource.
        value: a tree of the target; for CREATE, of a new child of the target.

    Raises:
        RestconfError: if the edit is impossible.
    """
    document: Tree = {target.top.name: deepcopy(before)}
    holder = reduce(_descend, target.steps[:-1], document)
    step, part = target.last, target.last.part
    match op:
        case Op.DELETE:
            _delete(holder, step)
        case Op.REPLACE if step.key is not None:
            key = step.key_value
            others = [entry for entry in holder.get(part.name, []) if entry[part.key] != key]
            holder[part.name] = [*others, value]
        case Op.REPLACE:
            holder[part.name] = value
        case Op.MERGE if step.key is None:
            _merge(holder, part, value)
        case Op.MERGE:
            _merge_children(_entry(holder, step), part, value)
        case Op.CREATE:
            tree = _descend(holder, step)
            _check_absent(tree, part, value)
            _merge_children(tree, part, value)
    content: Tree = document[target.top.name]
    return content


def find(tree: Tree, target: Target) -> Any:
    """Return a resource, given the content of its container.

    Raises:
        RestconfError: if the path leads to no resource.
    """
    step = target.last
    document: Tree = {target.top.name: tree}
    holder = reduce(_descend, target.steps[:-1], document)
    if step.key is not None:
        return _entry(holder, step)
    if step.part.name not in holder and not step.part.key:
        raise absent(step.client_name)
    return holder.get(step.part.name, [])


def lookup(tree: Tree, target: Target) -> Any | None:
    """Return a resource as `find`, or None if there is none."""
    try:
        return find(tree, target)
    except RestconfError:
        return None


def _descend(holder: Tree, step: Step) -> Tree:
    """Return the entry or container that a step leads to from its parent."""
    if step.key is not None:
        return _entry(holder, step)
    tree: Tree = holder.setdefault(step.part.name, {})
    return tree


def _entry(holder: Tree, step: Step) -> Tree:
    key = step.key_value
    entries: list[Tree] = holder.get(step.part.name, [])
    for entry in entries:
        if entry[step.part.key] == key:
            return entry
    raise absent(f"{step.client_name}={step.key}")


def _delete(holder: Tree, step: Step) -> None:
    part = step.part
    if step.key is not None:
        holder[part.name].remove(_entry(holder, step))
    elif not part.type:
        holder[part.name] = [] if part.key else {}
    elif part.mandatory:
        raise RestconfError("missing-element", f"{part.name} is needed")
    else:
        holder.pop(part.name, None)


def _merge(holder: Tree, part: Node, value: Any) -> None:
    """Merge the value of a child into its parent."""
    if part.type:
        holder[part.name] = value
    elif part.key:
        entries = holder.setdefault(part.name, [])
        by_key = {entry[part.key]: entry for entry in entries}
        for new in value:
            if new[part.key] in by_key:
                _merge_children(by_key[new[part.key]], part, new)
            else:
                entries.append(dict(new))
    else:
        _merge_children(holder.setdefault(part.name, {}), part, value)


def _merge_children(tree: Tree, node: Node, values: Tree) -> None:
    for name, value in values.items():
        if child := node.child(name):
            _merge(tree, child, value)


def _check_absent(tree: Tree, node: Node, values: Tree) -> None:
    """Raise RestconfError if one of the new children exists."""
    for name, value in values.items():
        part = node.child(name)
        if part is not None and part.key:
            keys = {entry[part.key] for entry in tree.get(name, ())}
            existing = [f"{name}={new[part.key]}" for new in value if new[part.key] in keys]
        else:
            existing = [name] if name in tree else []
        if existing:
            raise RestconfError("data-exists", f"{existing[0]} is there already")
