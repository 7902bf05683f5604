"""Resources in requests and responses, without the HTTP transport.

The names, locations and content of resources, and conditional requests (RFC 7232).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, quote

from moefabric.core.ocs import Group
from moefabric.emulator.ocs.restconf import schema
from moefabric.emulator.ocs.restconf.datastore import Datastore
from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError
from moefabric.emulator.ocs.restconf.schema import CONTAINERS, JSON, PAIR, PAIR_REVISION, Node
from moefabric.emulator.ocs.restconf.tree import Op, Target, Tree, find, lookup, parse_target

MEDIA = {JSON, "application/json", "text/json"}
"""Media types that are understood."""
ANY = {"*/*", "application/*", ""}


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
    def accepts_json(self) -> bool:
        """True if the client accepts JSON."""
        ranges = self.headers.get("accept", "*/*").split(",")
        kinds = {media_range.partition(";")[0].strip().lower() for media_range in ranges}
        return not kinds.isdisjoint(MEDIA | ANY)


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
    part = target.last.part
    if op is Op.CREATE:
        if part.type or target.is_whole_list:
            raise RestconfError("operation-not-supported", f"nothing can be made in {target}")
        children = " or ".join(child.name for child in part.children)
        name, value = _member(request, children)
        return schema.validate_container(part, {name: value})
    name, value = _member(request, part.name)
    prefix, _, plain = name.rpartition(":")
    if not part.is_named(plain) or prefix not in ("", part.module):
        raise RestconfError("unknown-element", f"the body is {name[:64]}, not {part.name}")
    content = schema.validate(part, value)
    if target.last.key is None:
        return content
    key = target.last.key_value
    if len(content) != 1 or content[0][part.key] != key:
        raise RestconfError("invalid-value", f"the {part.key} of the path was to be sent")
    return content[0]


def operation_inputs(request: Request, node: Node) -> Tree:
    """Return the inputs of an operation, whether or not a member `input` wraps them."""
    if not request.body.strip():
        return {}
    name, value = _member(request, "input")
    if name.rpartition(":")[2] == "input":
        return schema.validate_container(node, value or {})
    # Names are lowered because a public client sends `{"session-Id": 3}`.
    return schema.validate_container(node, {name.lower(): value})


def _member(request: Request, needed: str) -> tuple[str, Any]:
    """Return name and value of the only member of a body; `needed` names it in errors."""
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media not in MEDIA:
        raise ProtocolError("invalid-value", f"{JSON} is understood", 415)
    return schema.from_json(request.body, needed)


UNBOUNDED = 1 << 16


def represent(datastore: Datastore, target: Target, tree: Tree, query: Mapping[str, str]) -> Tree:
    """Return a resource under its name, in the form of a response.

    Args:
        tree: the result of `Datastore.read` for the target.
        query: parameters of the URI: `depth` and `content`.

    Raises:
        RestconfError: if the resource does not exist, or the query is invalid.
    """
    depth = _depth(query)
    if not target.steps:
        containers = {
            f"{node.module}:{name}": _content(datastore, parse_target(name), tree[name])
            for name, node in CONTAINERS.items()
        }
        return {"ietf-restconf:data": _cut(containers, depth)}
    last = target.last
    name = _pair_name(datastore, target) if last.part is PAIR else last.part.name
    return {f"{last.part.module}:{name}": _cut(_content(datastore, target, tree), depth)}


def location(root: str, target: Target, created: Tree) -> str:
    """Return the URI of a child that was created in a target."""
    steps = "".join(
        f"/{step.part.module}:{step.client_name}{f'={quote(step.key)}' if step.key else ''}"
        for step in target.steps
    )
    ((name, inner),) = created.items()
    part = target.last.part.child(name)
    key = f"={quote(str(inner[0][part.key]))}" if part and part.key and inner else ""
    return f"{root}/data{steps}/{name}{key}"


def _content(datastore: Datastore, target: Target, tree: Tree) -> Any:
    part, content = target.last.part, find(tree, target)
    if part.type:
        return content
    document = schema.qualify(part, content)
    if part.name == "cross-connects":
        return {_pair_name(datastore, target): document["pair"]}
    return document if target.last.key is None else [document]


def _pair_name(datastore: Datastore, target: Target) -> str:
    """Return the name of the cross-connect list: the client's name, or the revision's."""
    default = PAIR.alias if datastore.options.revision < PAIR_REVISION else PAIR.name
    return next((step.client_name for step in target.steps if step.part is PAIR), default)


def _depth(query: Mapping[str, str]) -> int:
    """Return the query's `depth`, the only parameter with effect (RFC 8040, section 4.8.2)."""
    for name in query:
        if name not in ("depth", "content") or (name == "content" and query[name] != "all"):
            raise ProtocolError("invalid-value", f"no {name[:64]} here")
    depth = query.get("depth", "unbounded")
    if depth == "unbounded":
        return UNBOUNDED
    if depth.isascii() and depth.isdigit() and len(depth) < 6 and 1 <= int(depth) <= 65535:
        return int(depth)
    raise ProtocolError("invalid-value", f"depth={depth[:64]}")


def _cut(document: Any, depth: int) -> Any:
    """Remove all nodes below a depth."""
    if isinstance(document, list):
        return [_cut(item, depth) for item in document]
    if not isinstance(document, dict):
        return document
    return {name: _cut(inner, depth - 1) for name, inner in document.items()} if depth > 1 else {}


CLOCK = "current-datetime"
"""A leaf that changes with time, excluded from the entity-tag."""


Validators = Mapping[str, str]
"""Header fields: the quoted entity-tag of a resource, and the last change if its time is known."""


def validators(datastore: Datastore, target: Target, tree: Tree) -> Validators:
    """Return the validators of a resource.

    The entity-tag is the version of cross-connects, or a hash of other data.

    Args:
        tree: the result of `Datastore.read` for the target.
    """
    device = datastore.device
    state: object
    if not target.steps:
        containers = {name: _without_clock(inner) for name, inner in tree.items()}
        containers.pop("sessions")
        state = [device.version, containers]
    elif target.top.name == "cross-connects":
        changed = formatdate(device.changed_s, usegmt=True)
        return {"ETag": f'"{device.version}"', "Last-Modified": changed}
    else:
        state = lookup(_without_clock(tree), target)
    text = json.dumps(state, sort_keys=True).encode()
    return {"ETag": f'"{hashlib.blake2b(text, digest_size=8).hexdigest()}"'}


def is_unchanged(headers: Mapping[str, str], now: Validators) -> bool:
    """Return whether the client's copy of a resource is current."""
    if "if-none-match" in headers:
        return _matches(headers["if-none-match"], now["ETag"])
    return _not_after(now.get("Last-Modified", ""), headers.get("if-modified-since", ""))


def check_preconditions(headers: Mapping[str, str], now: Validators, *, exists: bool) -> None:
    """Check the preconditions of a client that writes a resource.

    Raises:
        RestconfError: if a precondition does not hold.
    """
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    changed, since = now.get("Last-Modified", ""), headers.get("if-unmodified-since", "")
    if match is not None and not (exists and _matches(match, now["ETag"])):
        refusal = "changed since: If-Match"
    elif none_match is not None and exists and _matches(none_match, now["ETag"]):
        refusal = "there already: If-None-Match"
    elif match is None and since and changed and not _not_after(changed, since):
        refusal = "changed since: If-Unmodified-Since"
    else:
        return
    raise ProtocolError("operation-failed", f"{refusal} does not hold", 412)


def _matches(condition: str, etag: str) -> bool:
    """Return whether `*` or a list of tags matches. Public clients omit the quotes."""
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in condition.split(",")]
    return "*" in tags or etag.strip('"') in tags


def _not_after(changed: str, since: str) -> bool:
    try:
        return parsedate_to_datetime(changed) <= parsedate_to_datetime(since)
    except (ValueError, TypeError, IndexError, OverflowError):
        return False  # an invalid date counts as no condition


def _without_clock(tree: Tree) -> Tree:
    return {name: value for name, value in tree.items() if name != CLOCK}
