"""YANG modules of the switch: containers, lists and leaves, and the values of leaves.

The modules are data: see `schema.yaml` beside this file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import yaml

OPTICAL: Final = "optical-switch"
NAMESPACES: Final = {
    OPTICAL: "http://www.polatis.com/yang/optical-switch",
    "polatis-switch": "http://www.polatis.com/yang/polatis-switch",
    "ietf-restconf": "urn:ietf:params:xml:ns:yang:ietf-restconf",
    "ietf-yang-library": "urn:ietf:params:xml:ns:yang:ietf-yang-library",
}
PAIR_REVISION: Final = "2017-08-04"
"""The revision that renamed the list of cross-connects from `pairs` to `pair`."""
MAX_CHARS = 128
"""Maximum length of a string."""


@dataclass(frozen=True)
class Leaf:
    """A value: `number`, `decimal` (two places), `string` or `boolean`; or a list of them."""

    name: str
    type: str = "string"
    low: float = 0
    high: float = 4294967295
    values: tuple[str, ...] = ()
    """The values of an enumeration; empty if any value is allowed."""
    config: bool = True
    """Whether clients can write it."""
    is_list: bool = False
    mandatory: bool = False
    module: str = ""
    """Empty: the module of the parent."""


@dataclass(frozen=True)
class Node:
    """A container, or a list if it has a key."""

    name: str
    children: tuple["Leaf | Node", ...] = ()
    key: str = ""
    config: bool = True
    """Whether clients can write it."""
    module: str = ""
    """Empty: the module of the parent."""
    alias: str = ""
    """Name in older revisions."""

    def child(self, name: str) -> "Leaf | Node | None":
        """Return the child with this name or alias."""
        return next((child for child in self.children if is_named(child, name)), None)

    @property
    def leaves(self) -> Mapping[str, Leaf]:
        """The leaves among the children, by name."""
        return {child.name: child for child in self.children if isinstance(child, Leaf)}


def is_named(part: Leaf | Node, name: str) -> bool:
    """Return whether a part has this name or alias."""
    return name == part.name or (isinstance(part, Node) and bool(name) and name == part.alias)


def module_of(part: Leaf | Node, parent_module: str = OPTICAL) -> str:
    """Return the module of a part."""
    return part.module or parent_module


def checked(leaf: Leaf, value: Any) -> Any:
    """Return the value of a leaf in its canonical form (RFC 7950, section 9.1).

    Raises:
        ValueError: if the leaf can't have this value.
    """
    if leaf.is_list:
        if not isinstance(value, list):
            raise ValueError(f"{leaf.name} is a list")
        return [_checked(leaf, item) for item in value]
    return _checked(leaf, value)


def _checked(leaf: Leaf, value: Any) -> Any:
    text = value if isinstance(value, str) else "" if isinstance(value, bool | None) else str(value)
    match leaf.type:
        case "boolean":
            if value in (True, "true"):
                return True
            if value in (False, "false"):
                return False
        case "number":
            if re.fullmatch(r"[0-9]{1,10}", text) and leaf.low <= int(text) <= leaf.high:
                return int(text)
        case "decimal":
            is_decimal = re.fullmatch(r"[+-]?[0-9]{1,6}(\.[0-9]{1,4})?", text)
            if is_decimal and leaf.low <= float(text) <= leaf.high:
                return f"{float(text):.2f}"
        case "string" if isinstance(value, str):
            if value in leaf.values:
                return value
            if not leaf.values and re.fullmatch(r"[ -~]*", value) and len(value) <= MAX_CHARS:
                return value
    raise ValueError(f"{str(value)[:64]!r} is no value of {leaf.name}")


def _leaf(name: str, module: str, text: str) -> Leaf:
    words = text.split()
    flags = {"ro", "mandatory", "list"} & {*words}
    kind, *values = [word for word in words if word not in flags]
    limits = values[0].split("..") if values and ".." in values[0] else []
    low, high = map(float, limits or (0, 4294967295))
    return Leaf(
        name,
        kind,
        low,
        high,
        tuple(values) if not limits else (),
        config="ro" not in flags,
        is_list="list" in flags,
        mandatory="mandatory" in flags,
        module=module,
    )


def _part(qualified_name: str, content: str | dict[str, Any]) -> Leaf | Node:
    module, _, name = qualified_name.rpartition(":")
    return (
        _leaf(name, module, content) if isinstance(content, str) else _node(qualified_name, content)
    )


def _node(qualified_name: str, content: dict[str, Any]) -> Node:
    module, _, name = qualified_name.rpartition(":")
    children = {child: inner for child, inner in content.items() if not child.startswith(".")}
    return Node(
        name,
        tuple(_part(child, inner) for child, inner in children.items()),
        key=content.get(".key", ""),
        config=not content.get(".ro", False),
        module=module,
        alias=content.get(".alias", ""),
    )


_DOCUMENT = yaml.safe_load(files(__package__).joinpath("schema.yaml").read_text())
TOP: Final = tuple(_node(name, content) for name, content in _DOCUMENT["data"].items())
"""The containers of the datastore."""
CONTAINERS: Final = {node.name: node for node in TOP}
OPERATION_INPUTS: Final = {
    node.name: node for node in (_node(*item) for item in _DOCUMENT["operations"].items())
}
_pair = CONTAINERS["cross-connects"].children[0]
assert isinstance(_pair, Node)
PAIR: Final = _pair
"""The list of cross-connects."""
