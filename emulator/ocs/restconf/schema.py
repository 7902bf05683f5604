"""YANG modules of the switch: containers, lists and leaves, and their data as JSON (RFC 7951).

The modules are data: see `schema.yaml` beside this file. A tree of their data has lists of dicts,
names without module, and leaves in canonical form.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import starmap
from typing import Any, Final

import yaml

from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError

JSON: Final = "application/yang-data+json"
OPTICAL: Final = "optical-switch"
PAIR_REVISION: Final = "2017-08-04"
"""The revision that renamed the list of cross-connects from `pairs` to `pair`."""
MAX_CHARS = 128
"""Maximum length of a string."""


@dataclass(frozen=True)
class Node:
    """A leaf if it has a type, a list of entries if it has a key, else a container."""

    name: str
    children: tuple["Node", ...] = ()
    type: str = ""
    """Type of a leaf: `number`, `decimal` (two places), `string` or `boolean`."""
    low: float = 0
    high: float = 4294967295
    values: Mapping[str, str] = field(default_factory=dict)
    """The values of an enumeration, with the values of the setting; empty: any value."""
    setting: str = ""
    """The field of PortSettings, SystemSettings or Identity that a leaf shows."""
    is_list: bool = False
    """Whether a leaf has several values."""
    key: str = ""
    mandatory: bool = False
    config: bool = True
    """Whether clients can write it."""
    module: str = OPTICAL
    alias: str = ""
    """Name in older revisions."""

    def is_named(self, name: str) -> bool:
        """Return whether this is its name or alias."""
        return name == self.name or (bool(name) and name == self.alias)

    def child(self, name: str) -> "Node | None":
        """Return the child with this name or alias."""
        return next((child for child in self.children if child.is_named(name)), None)

    def __getitem__(self, name: str) -> "Node":
        return next(child for child in self.children if child.name == name)


def checked(leaf: Node, value: Any) -> Any:
    """Return the value of a leaf in its canonical form (RFC 7950, section 9.1).

    Raises:
        RestconfError: if the leaf can't have this value.
    """
    if leaf.is_list:
        if not isinstance(value, list):
            raise RestconfError("invalid-value", f"{leaf.name} is a list")
        return [_checked(leaf, item) for item in value]
    return _checked(leaf, value)


def _checked(leaf: Node, value: Any) -> Any:
    text = value if isinstance(value, str) else "" if isinstance(value, bool | None) else str(value)
    match leaf.type:
        case "boolean" if value in (True, False, "true", "false"):
            return value in (True, "true")
        case "number" if type(value) is int and leaf.low <= value <= leaf.high:
            return value
        case "decimal":
            is_decimal = re.fullmatch(r"[+-]?[0-9]{1,6}(\.[0-9]{1,4})?", text)
            if is_decimal and leaf.low <= float(text) <= leaf.high:
                return f"{float(text):.2f}"
        case "string" if isinstance(value, str):
            is_text = re.fullmatch(r"[ -~]*", value) and len(value) <= MAX_CHARS
            if value in leaf.values or (is_text and not leaf.values):
                return value
    raise RestconfError("invalid-value", f"{str(value)[:64]!r} is no value of {leaf.name}")


def shown(leaf: Node, setting: Any) -> Any:
    """Return the value of a leaf that shows a setting.

    The number 0 stands for no setting. Older revisions name only some modes: the last value stands
    for the others.
    """
    match leaf.type:
        case "decimal":
            return f"{setting:.2f}"
        case "number":
            return setting or 0
        case "string" if leaf.values:
            *_, last = leaf.values
            return next((value for value, known in leaf.values.items() if known == setting), last)
    return setting


def setting_of(leaf: Node, value: Any) -> Any:
    """Return the setting that a value of a leaf stands for; the inverse of `shown`."""
    match leaf.type:
        case "decimal":
            return float(value)
        case "number":
            return value or None
    return leaf.values.get(value, value)


def qualify(node: Node, tree: Any) -> Any:
    """Prefix the names of a tree with their module where it differs from the parent's."""
    if isinstance(tree, list):
        return [qualify(node, entry) for entry in tree]
    qualified = {}
    for name, value in tree.items():
        part = node[name]
        prefix = "" if part.module == node.module else f"{part.module}:"
        qualified[prefix + name] = value if part.type else qualify(part, value)
    return qualified


def encode(document: Any) -> bytes:
    """Encode a document."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def from_json(body: bytes, needed: str) -> tuple[str, Any]:
    """Return name and value of the only member of a JSON object; `needed` names it in errors."""
    try:
        document = json.loads(body, parse_constant=int)  # which refuses NaN and Infinity
    except (ValueError, RecursionError) as error:
        raise ProtocolError("malformed-message", f"this is not JSON: {error}") from error
    if not isinstance(document, dict) or len(document) != 1:
        raise ProtocolError("malformed-message", f"one member is needed: {needed}")
    ((name, value),) = document.items()
    return name, value


def validate_container(node: Node, value: Any) -> dict[str, Any]:
    """Check the content of a container or list entry, and return it as a tree.

    Raises:
        RestconfError: if the schema does not allow it.
    """
    if not isinstance(value, dict):
        raise RestconfError("invalid-value", f"{node.name} has named members")
    tree: dict[str, Any] = {}
    for name, inner in value.items():
        prefix, _, plain = name.rpartition(":")
        part = node.child(plain)
        if part is None or prefix not in ("", part.module):
            raise RestconfError("unknown-element", f"{node.name} has no {name[:64]}")
        if part.name in tree:
            raise RestconfError("bad-element", f"{part.name} twice")
        tree[part.name] = validate(part, inner)
    return tree


def validate(part: Node, value: Any) -> Any:
    """Check and return the entries of a list, content of a container or value of a leaf.

    Raises:
        RestconfError: if the schema does not allow it.
    """
    if part.type:
        return checked(part, value)
    if not part.key:
        return validate_container(part, value)
    values = value if isinstance(value, list) else [value]
    entries = [validate_container(part, entry) for entry in values]
    keys = [entry.get(part.key) for entry in entries]
    if None in keys:
        raise RestconfError("missing-element", f"an entry of {part.name} needs its {part.key}")
    if len(set(keys)) < len(keys):
        raise RestconfError("bad-element", f"an entry of {part.name} twice")
    return entries


def _node(qualified_name: str, content: Mapping[str, Any], outer: str = OPTICAL) -> Node:
    """Return a node; without a module in its name, it belongs to that of its parent."""
    prefix, _, name = qualified_name.rpartition(":")
    module = prefix or outer
    fields = {key[1:]: value for key, value in content.items() if key.startswith(".")}
    children = (_node(*child, module) for child in content.items() if not child[0].startswith("."))
    return Node(name, tuple(children), module=module, **fields)


_DOCUMENT = yaml.safe_load(files(__package__).joinpath("schema.yaml").read_text())
CONTAINERS: Final = {node.name: node for node in starmap(_node, _DOCUMENT["data"].items())}
"""The containers of the datastore."""
OPERATION_INPUTS: Final = {
    node.name: node for node in starmap(_node, _DOCUMENT["operations"].items())
}
PAIR: Final = CONTAINERS["cross-connects"].children[0]
"""The list of cross-connects."""
