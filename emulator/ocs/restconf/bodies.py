"""What a request's body says, as a tree that the schema has checked."""

from typing import Any

from emulator.ocs.restconf.edit import Op, Tree
from emulator.ocs.restconf.encoding import JSON, XML, from_json, from_xml, taken, taken_part
from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.messages import JSONS, XMLS, Request
from emulator.ocs.restconf.schema import OPTICAL, Leaf, Node
from emulator.ocs.restconf.target import Target


def edit_value(request: Request, about: Target, op: Op) -> Any:
    """The content of the target that is sent; for POST, of its new parts. RestconfError for what can't be that."""
    part, within = about.last.part, about.last.module
    if op is Op.CREATE:
        if isinstance(part, Leaf) or about.is_whole_list:
            raise RestconfError("operation-not-supported", f"nothing can be made in {about}")
        name, value = _member(request, part.children)
        return taken(part, {name: value}, within)
    name, value = _member(request, (part,))
    module, _, plain = name.rpartition(":")
    known = (part.name, part.alias) if isinstance(part, Node) else (part.name,)
    if plain not in known or module not in ("", within):
        raise RestconfError("unknown-element", f"{name[:64]} is not {part.name}")
    told = taken_part(part, value, within)
    return _entry(told, part, about) if about.is_entry and isinstance(part, Node) else told


def operation_input(request: Request, node: Node) -> Tree:
    """What an operation is told: in a member `input`, or bare."""
    if not request.body.strip():
        return {}
    wrapped = Node("input", node.children, module=node.module)
    name, value = _member(request, (wrapped, *node.children))
    if name.rpartition(":")[2] == "input":
        return taken(node, value or {}, node.module or OPTICAL)
    # A public client sends `{"session-Id": 3}`.
    return taken(node, {name.lower(): value}, node.module or OPTICAL)


def _entry(told: list[Tree], node: Node, about: Target) -> Tree:
    """The one entry that the path names."""
    if len(told) != 1 or told[0][node.key] != taken_part(node.leaves[node.key], about.last.key):
        raise RestconfError("invalid-value", f"the {node.key} of the path was to be sent")
    return told[0]


def _member(request: Request, parts: tuple[Node | Leaf, ...]) -> tuple[str, Any]:
    """The one member of the body: its name, and its value as JSON has it."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not media:
        media = XML if request.body.lstrip().startswith(b"<") else JSON
    if media in JSONS:
        return from_json(request.body)
    if media in XMLS:
        return from_xml(request.body, parts)
    raise RestconfError("invalid-value", f"{JSON} and {XML} are understood", status=415, kind="protocol")
