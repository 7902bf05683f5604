"""YANG data as JSON (RFC 7951): encoding, decoding, and validation by the schema.

A tree has lists of dicts, names without module, and leaves in canonical form.
"""

import json
from typing import Any

from moefabric.emulator.ocs.restconf import schema
from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError
from moefabric.emulator.ocs.restconf.schema import Node

JSON = "application/yang-data+json"


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
