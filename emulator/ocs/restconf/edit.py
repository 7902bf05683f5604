"""Edits as pure functions from the content of a container to its new content."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import Any

from moefabric.emulator.ocs.restconf.encoding import validate
from moefabric.emulator.ocs.restconf.errors import RestconfError, absent
from moefabric.emulator.ocs.restconf.schema import Leaf, Node
from moefabric.emulator.ocs.restconf.target import Step, Target

Tree = dict[str, Any]


class Op(Enum):
    """Kinds of edits, with their HTTP methods (RFC 8040, section 4)."""

    MERGE = "PATCH"
    REPLACE = "PUT"
    CREATE = "POST"
    DELETE = "DELETE"


@dataclass(frozen=True)
class Edit:
    """An edit. `value` is a tree of the target; for CREATE, of a new child of the target."""

    op: Op
    target: Target
    value: Any = None


def apply_edit(before: Tree, edit: Edit) -> Tree:
    """Return the content of the target's container after an edit.

    Raises:
        RestconfError: if the edit is impossible.
    """
    after = deepcopy(before)
    holder, step = _holder(after, edit.target.steps)
    if step is None:
        _edit_container(after, edit.target.top, edit)
    elif isinstance(step.part, Leaf):
        _edit_leaf(holder, step.part, edit)
    elif step.part.key and step.key is None:
        _edit_list(holder, step.part, edit)
    elif step.part.key:
        _edit_entry(holder, step, step.part, edit)
    else:
        _edit_container(holder.setdefault(step.part.name, {}), step.part, edit)
    return after


def find(tree: Tree, steps: tuple[Step, ...]) -> Any:
    """Return the resource at a path within the content of its container.

    Raises:
        RestconfError: if the path leads to no resource.
    """
    holder, step = _holder(tree, steps)
    if step is None:
        return holder
    part = step.part
    if isinstance(part, Node) and part.key:
        return holder.get(part.name, []) if step.key is None else _entry(holder, step)
    if part.name not in holder:
        raise absent(step.client_name)
    return holder[part.name]


def _holder(tree: Tree, steps: tuple[Step, ...]) -> tuple[Tree, Step | None]:
    """Return the parent of the last step, and that step; None for the container at the top."""
    holder = tree
    for step in steps[1:-1]:
        holder = (
            _entry(holder, step) if step.key is not None else holder.setdefault(step.part.name, {})
        )
    return holder, steps[-1] if len(steps) > 1 else None


def _key(step: Step) -> Any:
    """Return the key of a step as a value."""
    assert isinstance(step.part, Node)
    return validate(step.part.leaves[step.part.key], step.key)


def _entry(holder: Tree, step: Step) -> Tree:
    assert isinstance(step.part, Node)
    key = _key(step)
    entries: list[Tree] = holder.get(step.part.name, [])
    for entry in entries:
        if entry[step.part.key] == key:
            return entry
    raise absent(f"{step.client_name}={step.key}")


def _edit_container(tree: Tree, node: Node, edit: Edit) -> None:
    match edit.op:
        case Op.DELETE:
            tree.clear()
        case Op.REPLACE:
            tree.clear()
            tree.update(edit.value)
        case Op.MERGE:
            _merge(tree, node, edit.value)
        case Op.CREATE:
            _create(tree, node, edit.value)


def _edit_leaf(holder: Tree, leaf: Leaf, edit: Edit) -> None:
    if edit.op is not Op.DELETE:
        holder[leaf.name] = edit.value
    elif leaf.mandatory:
        raise RestconfError("missing-element", f"{leaf.name} is needed")
    else:
        holder.pop(leaf.name, None)


def _edit_list(holder: Tree, node: Node, edit: Edit) -> None:
    match edit.op:
        case Op.DELETE:
            holder[node.name] = []
        case Op.REPLACE:
            holder[node.name] = edit.value
        case _:
            _merge_entries(holder.setdefault(node.name, []), node, edit.value)


def _edit_entry(holder: Tree, step: Step, node: Node, edit: Edit) -> None:
    if edit.op is Op.REPLACE:
        others = [entry for entry in holder.get(node.name, []) if entry[node.key] != _key(step)]
        holder[node.name] = [*others, edit.value]
        return
    entry = _entry(holder, step)
    if edit.op is Op.DELETE:
        holder[node.name] = [other for other in holder[node.name] if other is not entry]
    else:
        _edit_container(entry, node, edit)


def _merge(tree: Tree, node: Node, value: Mapping[str, Any]) -> None:
    """Merge a value into a tree."""
    for name, inner in value.items():
        part = node.child(name)
        if isinstance(part, Node) and part.key:
            _merge_entries(tree.setdefault(part.name, []), part, inner)
        elif isinstance(part, Node):
            _merge(tree.setdefault(part.name, {}), part, inner)
        else:
            tree[name] = inner


def _merge_entries(entries: list[Tree], node: Node, values: list[Tree]) -> None:
    by_key = {entry[node.key]: entry for entry in entries}
    for value in values:
        if value[node.key] in by_key:
            _merge(by_key[value[node.key]], node, value)
        else:
            entries.append(dict(value))


def _create(tree: Tree, node: Node, value: Mapping[str, Any]) -> None:
    """Add new parts to a tree, none of which may exist."""
    for name, inner in value.items():
        part = node.child(name)
        if isinstance(part, Node) and part.key:
            keys = {entry[part.key] for entry in tree.get(part.name, ())}
            for entry in inner:
                if entry[part.key] in keys:
                    existing = f"{part.name}={entry[part.key]}"
                    raise RestconfError("data-exists", f"{existing} is there already")
            tree.setdefault(part.name, []).extend(inner)
        elif name in tree:
            raise RestconfError("data-exists", f"{name} is there already")
        else:
            tree[name] = inner
