"""Requests and responses without the HTTP transport, and request bodies as trees."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from moefabric.core.ocs import Group
from moefabric.emulator.ocs.restconf import encoding
from moefabric.emulator.ocs.restconf.edit import Op, Tree
from moefabric.emulator.ocs.restconf.encoding import JSON, XML, validate, validate_container
from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError
from moefabric.emulator.ocs.restconf.schema import OPTICAL, Node
from moefabric.emulator.ocs.restconf.target import Target

MEDIA = {
    **dict.fromkeys((JSON, "application/json", "text/json"), JSON),
    **dict.fromkeys((XML, "application/xml", "text/xml"), XML),
}
"""Media types that are understood, and how they encode."""
ANY = dict.fromkeys(("*/*", "application/*", ""), JSON)


@dataclass(frozen=True)
class Request:
    """A request. Names of header fields are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    user: str = ""
    """The authenticated user."""
    group: Group = "view"

    @property
    def path(self) -> str:
        """The path of the target."""
        return self.target.partition("?")[0]

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The query of the target, by name."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def media(self) -> str:
        """Return the client's preference of JSON and XML; RestconfError if it accepts neither."""
        if self.accepted is None:
            raise ProtocolError("invalid-value", f"{JSON} and {XML} can be had", 406)
        return self.accepted

    @property
    def accepted(self) -> str | None:
        """Return the client's preference of JSON and XML; None if it accepts neither."""
        ranges = self.headers.get("accept", "*/*").split(",")
        kinds = [media_range.partition(";")[0].strip().lower() for media_range in ranges]
        return next(((MEDIA | ANY)[kind] for kind in kinds if kind in MEDIA | ANY), None)


@dataclass(frozen=True)
class Response:
    """A response; if `settles` is true, it is sent when all light has settled."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    settles: bool = False


def edit_value(request: Request, target: Target, op: Op) -> Any:
    """Return the new content of a target, or for CREATE the content of its new child.

    Raises:
        RestconfError: if the body is invalid.
    """
    part, module = target.last.part, target.last.module
    if op is Op.CREATE:
        if part.type or target.is_whole_list:
            raise RestconfError("operation-not-supported", f"nothing can be made in {target}")
        name, value = _member(request, part.children)
        return validate_container(part, {name: value}, module)
    name, value = _member(request, (part,))
    prefix, _, plain = name.rpartition(":")
    if not part.is_named(plain) or prefix not in ("", module):
        raise RestconfError("unknown-element", f"{name[:64]} is not {part.name}")
    content = validate(part, value, module)
    if not target.is_entry:
        return content
    key = target.last.key_value
    if len(content) != 1 or content[0][part.key] != key:
        raise RestconfError("invalid-value", f"the {part.key} of the path was to be sent")
    return content[0]


def operation_inputs(request: Request, node: Node) -> Tree:
    """Return the inputs of an operation, whether or not a member `input` wraps them."""
    if not request.body.strip():
        return {}
    module = node.module or OPTICAL
    name, value = _member(request, (Node("input", node.children), *node.children))
    if name.rpartition(":")[2] == "input":
        return validate_container(node, value or {}, module)
    # Names are lowered because a public client sends `{"session-Id": 3}`.
    return validate_container(node, {name.lower(): value}, module)


def _member(request: Request, parts: tuple[Node, ...]) -> tuple[str, Any]:
    """Return name and value of the only member of a body, in the form that JSON data has."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not media:
        media = XML if request.body.lstrip().startswith(b"<") else JSON
    match MEDIA.get(media):
        case encoding.JSON:
            return encoding.from_json(request.body)
        case encoding.XML:
            return encoding.from_xml(request.body, parts)
    raise ProtocolError("invalid-value", f"{JSON} and {XML} are understood", 415)
