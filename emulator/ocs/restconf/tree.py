"""Paths into YANG data, and edits as pure functions from content to new content.

A path is the part of a URI below the datastore, resolved by the schema (RFC 8040, section 3.5.3).
"""

import re
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any
from urllib.parse import unquote

from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError, absent
from moefabric.emulator.ocs.restconf.schema import CONTAINERS, Node, validate

Tree = dict[str, Any]

SEGMENT = re.compile(
    r"(?:([A-Za-z_][A-Za-z0-9_.-]*):)?([A-Za-z_][A-Za-z0-9_.-]*)(?:=(.*))?", re.DOTALL
)


@dataclass(frozen=True)
class Step:
    """Step of a path. `client_name` is the name that the client wrote."""

    part: Node
    client_name: str
    key: str | None = None

    @property
    def key_value(self) -> Any:
        """The key as a value of the list's key leaf; RestconfError if it is none."""
        leaf, key = self.part[self.part.key], self.key or ""
        is_number = leaf.type == "number" and re.fullmatch(r"[0-9]{1,10}", key)
        return validate(leaf, int(key) if is_number else key)

    def __str__(self) -> str:
        path = f"/{self.part.module}:{self.part.name}"
        return path if self.key is None else f"{path}[{self.part.key}='{self.key}']"


@dataclass(frozen=True)
class Target:
    """A data resource: the steps to it from a container; without steps, the whole datastore."""

    steps: tuple[Step, ...] = ()

    @property
    def top(self) -> Node:
        """The container at the top; undefined for the datastore itself."""
        return self.steps[0].part

    @property
    def last(self) -> Step:
        """The last step."""
        return self.steps[-1]

    @property
    def is_whole_list(self) -> bool:
        """True if this is a list without a key."""
        return bool(self.last.part.key) and self.last.key is None

    @property
    def is_config(self) -> bool:
        """True if clients can write it."""
        return all(step.part.config for step in self.steps)

    def __str__(self) -> str:
        return "".join(map(str, self.steps)) or "/"


def parse_target(path: str) -> Target:
    """Resolve a path below the datastore, such as `/optical-switch:cross-connects/pair=1`.

    Raises:
        RestconfError: if the schema has no such resource.
    """
    steps: list[Step] = []
    for segment in filter(None, path.split("/")):
        steps.append(_step(segment, steps[-1] if steps else None))
    return Target(tuple(steps))


def _step(segment: str, before: Step | None) -> Step:
    match = SEGMENT.fullmatch(segment)
    if match is None:
        raise ProtocolError("invalid-value", f"{segment[:64]!r} is no step of a path")
    module, name, key = match.groups()
    part = _part(name, before)
    if part is None or module not in (None, part.module):
        raise absent(segment)
    if key is not None and (not part.key or "," in key):
        raise ProtocolError("invalid-value", f"{name} has no such key: {key[:64]}")
    return Step(part, name, None if key is None else _unquote(key))


def _part(name: str, before: Step | None) -> Node | None:
    if before is None:
        return CONTAINERS.get(name)
    if before.part.key and before.key is None:
        return None
    return before.part.child(name)


def _unquote(key: str) -> str:
    try:
        return unquote(key, errors="strict")
    except UnicodeDecodeError:
        raise ProtocolError("invalid-value", "a key is not UTF-8") from None


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
        value: a tree of the target; for CREATE, of a new child of the target.

    Raises:
        RestconfError: if the edit is impossible.
    """
    document: Tree = {target.top.name: deepcopy(before)}
    holder = reduce(_descend, target.steps[:-1], document)
    step, part = target.last, target.last.part
    is_key = len(target.steps) > 1 and target.steps[-2].part.key == part.name
    if is_key and op is not Op.DELETE and value != holder[part.name]:
        raise RestconfError("invalid-value", f"{part.name} is the key of its entry, and stays")
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
        _merge(tree, node[name], value)


def _check_absent(tree: Tree, node: Node, values: Tree) -> None:
    """Raise RestconfError if one of the new children exists."""
    for name, value in values.items():
        part = node[name]
        if part.key:
            keys = {entry[part.key] for entry in tree.get(name, ())}
            existing = [f"{name}={new[part.key]}" for new in value if new[part.key] in keys]
        else:
            existing = [name] if name in tree else []
        if existing:
            raise RestconfError("data-exists", f"{existing[0]} is there already")
