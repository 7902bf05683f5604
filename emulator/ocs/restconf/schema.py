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
class Node:
    """A leaf if it has a type, a list of entries if it has a key, else a container."""

    name: str
    children: tuple["Node", ...] = ()
    type: str = ""
    """Type of a leaf: `number`, `decimal` (two places), `string` or `boolean`."""
    low: float = 0
    high: float = 4294967295
    values: tuple[str, ...] = ()
    """The values of an enumeration; empty if any value is allowed."""
    is_list: bool = False
    """Whether it has several entries or, as a leaf, several values."""
    key: str = ""
    mandatory: bool = False
    config: bool = True
    """Whether clients can write it."""
    module: str = ""
    """Empty: the module of the parent."""
    alias: str = ""
    """Name in older revisions."""

    def is_named(self, name: str) -> bool:
        """Return whether this is its name or alias."""
        return name == self.name or (bool(name) and name == self.alias)

    def child(self, name: str) -> "Node | None":
        """Return the child with this name or alias."""
        return next((child for child in self.children if child.is_named(name)), None)

    @property
    def leaves(self) -> Mapping[str, "Node"]:
        """The leaves among the children, by name."""
        return {child.name: child for child in self.children if child.type}


def checked(leaf: Node, value: Any) -> Any:
    """Return the value of a leaf in its canonical form (RFC 7950, section 9.1).

    Raises:
        ValueError: if the leaf can't have this value.
    """
    if leaf.is_list:
        if not isinstance(value, list):
            raise ValueError(f"{leaf.name} is a list")
        return [_checked(leaf, item) for item in value]
    return _checked(leaf, value)


def _checked(leaf: Node, value: Any) -> Any:
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


def _leaf(name: str, module: str, text: str) -> Node:
    words = text.split()
    flags = {"ro", "mandatory", "list"} & {*words}
    kind, *values = [word for word in words if word not in flags]
    limits = values[0].split("..") if values and ".." in values[0] else []
    low, high = map(float, limits or (0, 4294967295))
    return Node(
        name,
        type=kind,
        low=low,
        high=high,
        values=tuple(values) if not limits else (),
        is_list="list" in flags,
        mandatory="mandatory" in flags,
        config="ro" not in flags,
        module=module,
    )


def _node(qualified_name: str, content: str | dict[str, Any]) -> Node:
    module, _, name = qualified_name.rpartition(":")
    if isinstance(content, str):
        return _leaf(name, module, content)
    return Node(
        name,
        tuple(_node(*child) for child in content.items() if not child[0].startswith(".")),
        is_list=".key" in content,
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
PAIR: Final = CONTAINERS["cross-connects"].children[0]
"""The list of cross-connects."""
