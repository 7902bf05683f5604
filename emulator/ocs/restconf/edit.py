"""Edits as a pure function: the content of a container before, and after."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import Any

from emulator.ocs.restconf.encoding import taken_leaf
from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.schema import Leaf, Node
from emulator.ocs.restconf.target import Step, Target

Tree = dict[str, Any]


class Op(Enum):
    """What is done to a resource: named after HTTP's methods."""

    MERGE = "PATCH"
    REPLACE = "PUT"
    CREATE = "POST"
    DELETE = "DELETE"


@dataclass(frozen=True)
class Edit:
    """What a request wants changed. `value` is a tree of the target; of its parent's new child, for CREATE."""

    op: Op
    target: Target
    value: Any = None


def edited(before: Tree, edit: Edit) -> Tree:
    """The content of the target's container after an edit. RestconfError if that can't be."""
    after = deepcopy(before)
    holder, step = _holder(after, edit.target.steps)
    if step is None:
        _edit_container(after, edit.target.top, edit)
    elif isinstance(step.part, Leaf):
        _edit_leaf(holder, step.part, edit)
    elif step.part.key and step.key is None:
        _edit_list(holder, step.part, edit)
    elif step.part.key:
        _edit_entry(holder, step, edit)
    else:
        _edit_container(holder.setdefault(step.part.name, {}), step.part, edit)
    return after


def found(tree: Tree, steps: tuple[Step, ...]) -> Any:
    """What a path leads to in a container's content. RestconfError where there is nothing."""
    holder, step = _holder(tree, steps)
    if step is None:
        return holder
    if isinstance(step.part, Node) and step.part.key and step.key is not None:
        return _entry(holder, step)
    if step.part.name not in holder:
        if isinstance(step.part, Node) and step.part.key:
            return []
        raise absent(step.called)
    return holder[step.part.name]


def absent(name: str) -> RestconfError:
    """There is nothing of that name."""
    return RestconfError("invalid-value", f"there is no {name[:64]}", status=404)


def _holder(tree: Tree, steps: tuple[Step, ...]) -> tuple[Tree, Step | None]:
    """What holds the last step, and that step; None where the container at the top itself is meant."""
    holder = tree
    for step in steps[1:-1]:
        holder = _entry(holder, step) if step.key is not None else holder.setdefault(step.part.name, {})
    return holder, steps[-1] if len(steps) > 1 else None


def _key(step: Step) -> Any:
    """An entry's key as a value."""
    assert isinstance(step.part, Node)
    return taken_leaf(step.part.leaves[step.part.key], step.key)


def _entry(holder: Tree, step: Step) -> Tree:
    assert isinstance(step.part, Node)
    key = _key(step)
    for entry in holder.get(step.part.name, ()):
        if entry[step.part.key] == key:
            known: Tree = entry
            return known
    raise absent(f"{step.called}={step.key}")


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
    if edit.op is Op.DELETE:
        if leaf.mandatory:
            raise RestconfError("missing-element", f"{leaf.name} is needed")
        holder.pop(leaf.name, None)
    else:
        holder[leaf.name] = edit.value


def _edit_list(holder: Tree, node: Node, edit: Edit) -> None:
    match edit.op:
        case Op.DELETE:
            holder[node.name] = []
        case Op.REPLACE:
            holder[node.name] = edit.value
        case _:
            _merge(holder, node, {node.name: edit.value}, in_parent=True)


def _edit_entry(holder: Tree, step: Step, edit: Edit) -> None:
    node = step.part
    assert isinstance(node, Node)
    if edit.op is Op.REPLACE:
        entries = [one for one in holder.get(node.name, []) if one[node.key] != _key(step)]
        holder[node.name] = [*entries, edit.value]
        return
    entry = _entry(holder, step)
    if edit.op is Op.DELETE:
        holder[node.name] = [one for one in holder[node.name] if one is not entry]
    elif edit.op is Op.MERGE:
        _merge(entry, node, edit.value)
    else:
        _create(entry, node, edit.value)


def _merge(tree: Tree, node: Node, value: Mapping[str, Any], *, in_parent: bool = False) -> None:
    """Put what is told over what there is."""
    for name, inner in value.items():
        part = node if in_parent else node.child(name)
        if isinstance(part, Node) and part.key:
            _merge_entries(tree.setdefault(part.name, []), part, inner)
        elif isinstance(part, Node):
            _merge(tree.setdefault(part.name, {}), part, inner)
        else:
            tree[name] = inner


def _merge_entries(entries: list[Tree], node: Node, told: list[Tree]) -> None:
    known = {entry[node.key]: entry for entry in entries}
    for one in told:
        if one[node.key] in known:
            _merge(known[one[node.key]], node, one)
        else:
            entries.append(dict(one))


def _create(tree: Tree, node: Node, value: Mapping[str, Any]) -> None:
    """Put new parts into it; none may be there."""
    for name, inner in value.items():
        part = node.child(name)
        if isinstance(part, Node) and part.key:
            known = {entry[part.key] for entry in tree.get(part.name, ())}
            for one in inner:
                if one[part.key] in known:
                    raise RestconfError("data-exists", f"{part.name}={one[part.key]} is there already")
            tree.setdefault(part.name, []).extend(inner)
        elif name in tree:
            raise RestconfError("data-exists", f"{name} is there already")
        else:
            tree[name] = inner
