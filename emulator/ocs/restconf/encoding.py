"""YANG data as JSON (RFC 7951) and as XML: from trees of plain values to bytes, and from bytes to trees that the schema has checked.

A tree has lists of dicts, names without module, and every leaf in its one form.
"""

import json
from typing import Any
from xml.etree import ElementTree as ET

from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.schema import NAMESPACES, OPTICAL, Leaf, Node, checked, module_of

JSON = "application/yang-data+json"
XML = "application/yang-data+xml"
DEEPEST = 16
LEVELS = 64


def qualified(node: Node, tree: Any, within: str) -> Any:
    """A tree of plain names as JSON has it: a name of another module than its parent's says which."""
    if isinstance(tree, list):
        return [qualified(node, one, within) for one in tree]
    told = {}
    for name, value in tree.items():
        part = node.child(name)
        own = module_of(part, within) if part else within
        prefix = "" if own == within else f"{own}:"
        told[prefix + name] = qualified(part, value, own) if isinstance(part, Node) else value
    return told


def to_json(told: Any) -> bytes:
    """JSON, as it is sent."""
    return json.dumps(told, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def to_xml(told: Any) -> bytes:
    """XML of what `to_json` takes: one element for each of its members, of which there is one at least."""
    return (
        b"".join(ET.tostring(one) for name, value in told.items() for one in _elements(name, value, ""))
        + b"\n"
    )


def _elements(name: str, value: Any, within: str) -> list[ET.Element]:
    module, _, plain = name.rpartition(":")
    module = module or within
    if isinstance(value, list):
        return [one for each in value for one in _elements(name, each, within)]
    element = ET.Element(plain)
    if module and module != within:
        element.set("xmlns", NAMESPACES[module])
    if isinstance(value, dict):
        for child, inner in value.items():
            element.extend(_elements(child, inner, module))
    else:
        element.text = str(value).lower() if isinstance(value, bool) else str(value)
    return [element]


def from_json(body: bytes) -> tuple[str, Any]:
    """The one member of a JSON object: its name and its value."""
    try:
        told = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as wrong:
        raise RestconfError("malformed-message", "this is not JSON", kind="protocol") from wrong
    if not isinstance(told, dict) or len(told) != 1:
        raise RestconfError("malformed-message", "one member was to be sent", kind="protocol")
    ((name, value),) = told.items()
    return name, value


def from_xml(body: bytes, parts: tuple[Node | Leaf, ...]) -> tuple[str, Any]:
    """An XML element that is one of these parts: its name, and its content as JSON would have it. Others have no content."""
    if b"<!" in body:
        raise RestconfError("malformed-message", "a document type is not understood", kind="protocol")
    if body.count(b"<") > 65536:
        raise RestconfError("malformed-message", "too many elements", kind="protocol")
    try:
        root = ET.fromstring(body)  # noqa: S314 - see above
    except (ET.ParseError, ValueError, LookupError) as wrong:
        raise RestconfError("malformed-message", "this is not XML", kind="protocol") from wrong
    name = _local(root.tag)
    for part in parts:
        if name == part.name or (isinstance(part, Node) and name == part.alias):
            value = _content(root, part, 0)
            return name, [value] if isinstance(part, Node) and part.key else value
    return name, None


def _content(element: ET.Element, part: Node | Leaf, level: int) -> Any:
    if isinstance(part, Leaf):
        return (element.text or "").strip()
    if level > LEVELS:
        raise RestconfError("malformed-message", "nested too deeply", kind="protocol")
    told: dict[str, Any] = {}
    for child in element:
        name = _local(child.tag)
        inner = part.child(name)
        if inner is None:
            raise RestconfError("unknown-element", f"{part.name} has no {name[:64]}")
        value = _content(child, inner, level + 1)
        if (isinstance(inner, Node) and inner.key) or (isinstance(inner, Leaf) and inner.many):
            told.setdefault(name, []).append(value)
        else:
            told[name] = value
    return told


def _local(tag: Any) -> str:
    return str(tag).rpartition("}")[2]


def taken(node: Node, value: Any, within: str = OPTICAL, level: int = 0) -> dict[str, Any]:
    """The content of a container or of an entry as a tree. RestconfError for what the schema doesn't have."""
    if not isinstance(value, dict):
        raise RestconfError("invalid-value", f"{node.name} has named members")
    told: dict[str, Any] = {}
    for name, inner in value.items():
        module, _, plain = name.rpartition(":")
        part = node.child(plain)
        if part is None or (module and module != module_of(part, within)):
            raise RestconfError("unknown-element", f"{node.name} has no {name[:64]}")
        if part.name in told:
            raise RestconfError("bad-element", f"{part.name} twice")
        told[part.name] = taken_part(part, inner, module_of(part, within), level + 1)
    return told


def taken_part(part: Node | Leaf, value: Any, within: str = OPTICAL, level: int = 0) -> Any:
    """A list's entries, a container's content or a leaf's value."""
    if isinstance(part, Leaf):
        return taken_leaf(part, value)
    if not part.key:
        return taken(part, value, within, level)
    entries = value if isinstance(value, list) else [value]
    told = [taken(part, one, within, level) for one in entries]
    keys = [entry.get(part.key) for entry in told]
    if None in keys:
        raise RestconfError("missing-element", f"an entry of {part.name} needs its {part.key}")
    if len(set(keys)) < len(keys):
        raise RestconfError("bad-element", f"an entry of {part.name} twice")
    return told


def taken_leaf(leaf: Leaf, value: Any) -> Any:
    """A leaf's value in its one form."""
    try:
        return checked(leaf, value)
    except ValueError as wrong:
        raise RestconfError("invalid-value", str(wrong)) from wrong


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
