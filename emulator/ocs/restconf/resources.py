"""Resources in responses: content, names, locations, and conditional requests (RFC 7232)."""

import hashlib
import json
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from moefabric.emulator.ocs.restconf.datastore import Datastore
from moefabric.emulator.ocs.restconf.edit import Tree, find, lookup
from moefabric.emulator.ocs.restconf.encoding import XML, qualify
from moefabric.emulator.ocs.restconf.errors import ProtocolError
from moefabric.emulator.ocs.restconf.schema import CONTAINERS, OPTICAL, PAIR, PAIR_REVISION
from moefabric.emulator.ocs.restconf.target import Target, parse_target

UNBOUNDED = 1 << 16


def represent(
    datastore: Datastore, target: Target, tree: Tree, query: Mapping[str, str], media: str
) -> Tree:
    """Return a resource under its name, in the form of a response.

    Args:
        datastore: the data of the switch.
        target: the resource.
        tree: the result of `Datastore.read` for the target.
        query: parameters of the URI: `depth` and `content`.
        media: JSON or XML.

    Raises:
        RestconfError: if the resource does not exist, or the query is invalid.
    """
    depth = _depth(query)
    if not target.steps:
        containers = {
            f"{node.module or OPTICAL}:{name}": _content(datastore, parse_target(name), tree[name])
            for name, node in CONTAINERS.items()
        }
        return {"ietf-restconf:data": _cut(containers, depth)}
    last = target.last
    name = _pair_name(datastore, target) if last.part is PAIR else last.part.name
    named = {f"{last.module}:{name}": _cut(_content(datastore, target, tree), depth)}
    # XML has one root, and a list may have several entries.
    return {"ietf-restconf:data": named} if media == XML and target.is_whole_list else named


def location(root: str, target: Target, created: Tree) -> str:
    """Return the URI of a child that was created in a target."""
    steps = "".join(
        f"/{step.module}:{step.client_name}{f'={quote(step.key)}' if step.key else ''}"
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
    document = qualify(part, content, target.last.module)
    if part.name == "cross-connects":
        return {_pair_name(datastore, target): document["pair"]}
    return [document] if target.is_entry else document


def _pair_name(datastore: Datastore, target: Target) -> str:
    """Return the name of the cross-connect list: the client's name, or the revision's."""
    own = PAIR.alias if datastore.options.revision < PAIR_REVISION else PAIR.name
    return next((step.client_name for step in target.steps if step.part is PAIR), own)


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
        datastore: the datastore.
        target: the resource.
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
