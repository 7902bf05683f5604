"""YANG data as JSON (RFC 7951) and XML: encoding, decoding, and validation by the schema.

A tree has lists of dicts, names without module, and leaves in canonical form.
"""

import json
import re
from itertools import chain
from typing import Any
from xml.etree import ElementTree as ET

from moefabric.emulator.ocs.restconf import schema
from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError
from moefabric.emulator.ocs.restconf.schema import Node

JSON = "application/yang-data+json"
XML = "application/yang-data+xml"
MAX_ELEMENTS = 65536
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")


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


def encode(document: Any, media: str) -> bytes:
    """Encode a document: as JSON, or each member of a JSON object as an XML element."""
    if media == JSON:
        return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
    members = (_elements(name, value, "") for name, value in document.items())
    return b"".join(map(ET.tostring, chain.from_iterable(members))) + b"\n"


def _elements(name: str, value: Any, parent_module: str) -> list[ET.Element]:
    module, _, plain = name.rpartition(":")
    module = module or parent_module
    if isinstance(value, list):
        return [element for item in value for element in _elements(name, item, parent_module)]
    element = ET.Element(plain)
    if module and module != parent_module:
        element.set("xmlns", schema.NAMESPACES[module])
    if isinstance(value, dict):
        for child, inner in value.items():
            element.extend(_elements(child, inner, module))
    else:
        element.text = str(value).lower() if isinstance(value, bool) else str(value)
    return [element]


def from_json(body: bytes) -> tuple[str, Any]:
    """Return name and value of the only member of a JSON object."""
    try:
        document = json.loads(body, parse_constant=int)  # which refuses NaN and Infinity
    except (ValueError, RecursionError) as error:
        raise ProtocolError("malformed-message", "this is not JSON") from error
    if not isinstance(document, dict) or len(document) != 1:
        raise ProtocolError("malformed-message", "one member was to be sent")
    ((name, value),) = document.items()
    return name, value


def from_xml(body: bytes, parts: tuple[Node, ...]) -> tuple[str, Any]:
    """Return name and content of an XML element, in the form that JSON data has.

    Args:
        parts: the nodes that the element may stand for; other elements yield None.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProtocolError("malformed-message", "XML is to be sent in UTF-8") from error
    # Text has no byte order mark and its declaration of an encoding is removed, so that the parser
    # reads the characters that were checked.
    text = _DECLARATION.sub("", text, count=1)
    if "\0" in text:  # expat 2.5 reads such text as UTF-16
        raise ProtocolError("malformed-message", "XML is to be sent in UTF-8")
    if "<!" in text:
        raise ProtocolError("malformed-message", "a document type is not understood")
    if text.count("<") > MAX_ELEMENTS:
        raise ProtocolError("malformed-message", "too many elements")
    try:
        root = ET.fromstring(text)  # noqa: S314 - the checks above exclude entities and bombs
    except (ET.ParseError, ValueError, LookupError) as error:
        raise ProtocolError("malformed-message", "this is not XML") from error
    name = _local_name(root)
    for part in parts:
        if part.is_named(name):
            value = _content(root, part)
            return name, [value] if part.key else value
    return name, None


def _content(element: ET.Element, part: Node) -> Any:
    if part.type:
        return (element.text or "").strip()
    content: dict[str, Any] = {}
    for child in element:
        name = _local_name(child)
        inner = part.child(name)
        if inner is None:
            raise RestconfError("unknown-element", f"{part.name} has no {name[:64]}")
        value = _content(child, inner)
        if inner.is_list or inner.key:
            content.setdefault(name, []).append(value)
        else:
            content[name] = value
    return content


def _local_name(element: ET.Element) -> str:
    return str(element.tag).rpartition("}")[2]


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
        return schema.checked(part, value)
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
