"""Representation of resources in responses: their content, names and locations."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from moefabric.emulator.ocs.restconf.datastore import Datastore
from moefabric.emulator.ocs.restconf.edit import Tree, find
from moefabric.emulator.ocs.restconf.encoding import XML, qualify
from moefabric.emulator.ocs.restconf.errors import ProtocolError
from moefabric.emulator.ocs.restconf.schema import PAIR, PAIR_REVISION, TOP, Leaf, Node, module_of
from moefabric.emulator.ocs.restconf.target import Target, parse_target

UNBOUNDED = 1 << 16


def read(datastore: Datastore, target: Target) -> Tree:
    """Return the content of the target's container, or of all containers for the datastore."""
    return datastore.read(target.top.name) if target.steps else datastore.read_all()


def represent(
    datastore: Datastore, target: Target, tree: Tree, query: Mapping[str, str], media: str
) -> Tree:
    """Return a resource under its name, in the form of a response.

    Args:
        datastore: the datastore.
        target: the resource.
        tree: the result of `read` for the target.
        query: parameters of the URI: `depth` and `content`.
        media: JSON or XML.

    Raises:
        RestconfError: if the resource does not exist, or the query is invalid.
    """
    depth = _depth(query)
    if not target.steps:
        containers = {
            f"{module_of(node)}:{node.name}": _content(
                datastore, parse_target(node.name), tree[node.name]
            )
            for node in TOP
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
    part = target.last.part.child(name) if isinstance(target.last.part, Node) else None
    has_key = isinstance(part, Node) and part.key and inner
    key = f"={quote(str(inner[0][part.key]))}" if isinstance(part, Node) and has_key else ""
    return f"{root}/data{steps}/{name}{key}"


def _content(datastore: Datastore, target: Target, tree: Tree) -> Any:
    part, content = target.last.part, find(tree, target.steps)
    if isinstance(part, Leaf):
        return content
    document = qualify(part, content, target.last.module)
    if part.name == "cross-connects":
        return {_pair_name(datastore, target): document["pair"]}
    return [document] if target.is_entry else document


def _pair_name(datastore: Datastore, target: Target) -> str:
    """Return the name of the cross-connect list: the client's name, or the revision's."""
    for step in target.steps:
        if step.part is PAIR:
            return step.client_name
    is_old = datastore.device.profile.restconf.revision < PAIR_REVISION
    return PAIR.alias if is_old else PAIR.name


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
