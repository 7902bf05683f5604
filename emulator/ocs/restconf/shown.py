"""Resources as a response has them: what they are called, what of them is shown, and what tells that they have changed."""

import hashlib
import json
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

from emulator.ocs.restconf.conditions import Validators
from emulator.ocs.restconf.data import Data
from emulator.ocs.restconf.edit import Tree, found
from emulator.ocs.restconf.encoding import XML, qualified
from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.schema import PAIR, SINCE, TOP, Leaf, Node, module_of
from emulator.ocs.restconf.target import Target, target

CLOCK = "current-datetime"
UNBOUNDED = 1 << 16


def read(data: Data, about: Target) -> Tree:
    """The content of the container that a path leads into; of all of them, by name, if it leads to none."""
    return data.read(about.top.name) if about.steps else data.read_all()


def resource(data: Data, about: Target, tree: Tree, query: Mapping[str, str], media: str) -> Tree:
    """What a path leads to in what was read, by its name, as deep as is asked for. RestconfError where there is nothing."""
    depth = _depth(query)
    if not about.steps:
        tops = {
            f"{module_of(node)}:{node.name}": _content(data, target(node.name), tree[node.name])
            for node in TOP
        }
        return {"ietf-restconf:data": _cut(tops, depth)}
    name = _pairs(data, about) if about.last.part is PAIR else about.last.part.name
    named = {f"{about.last.module}:{name}": _cut(_content(data, about, tree), depth)}
    # XML has one root, and a list may have several entries.
    return {"ietf-restconf:data": named} if media == XML and about.is_whole_list else named


def validators(data: Data, about: Target, tree: Tree) -> Validators:
    """What tells whether a resource has changed: of cross-connects, their version; of all else, what was read of it."""
    store = data.store
    if about.steps and about.top.name == "cross-connects":
        return Validators(f'"{store.version}"', formatdate(store.changed_s, usegmt=True))
    if about.steps:
        try:
            state = found(_steady(tree), about.steps)
        except RestconfError:
            state = None
    else:
        state = [store.version, {name: _steady(inner) for name, inner in tree.items() if name != "sessions"}]
    said = json.dumps(state, sort_keys=True).encode()
    return Validators(f'"{hashlib.blake2b(said, digest_size=8).hexdigest()}"')


def location(root: str, about: Target, created: Tree) -> str:
    """Where something is that was made in `about`."""
    steps = "".join(
        f"/{step.module}:{step.called}{f'={quote(step.key)}' if step.key else ''}" for step in about.steps
    )
    ((name, inner),) = created.items()
    part = about.last.part.child(name) if isinstance(about.last.part, Node) else None
    key = f"={quote(str(inner[0][part.key]))}" if isinstance(part, Node) and part.key and inner else ""
    return f"{root}/data{steps}/{name}{key}"


def _steady(tree: Tree) -> Tree:
    """Without what changes by itself."""
    return {name: value for name, value in tree.items() if name != CLOCK}


def _content(data: Data, about: Target, tree: Tree) -> Any:
    """A resource's content as JSON has it."""
    part, content = about.last.part, found(tree, about.steps)
    if isinstance(part, Leaf):
        return content
    told = qualified(part, content, about.last.module)
    if part.name == "cross-connects":
        return {_pairs(data, about): told["pair"]}
    return [told] if about.is_entry else told


def _pairs(data: Data, about: Target) -> str:
    """The list of cross-connects as the client calls it; as the module's revision does, if the client hasn't."""
    called = [step.called for step in about.steps if step.part is PAIR]
    return called[0] if called else PAIR.alias if data.store.profile.restconf.revision < SINCE else PAIR.name


def _depth(query: Mapping[str, str]) -> int:
    """How deep a GET goes. RestconfError for anything else that the query asks."""
    for name in query:
        if name not in ("depth", "content") or (name == "content" and query[name] != "all"):
            raise RestconfError("invalid-value", f"no {name[:64]} here", kind="protocol")
    depth = query.get("depth", "unbounded")
    if depth == "unbounded":
        return UNBOUNDED
    if depth.isascii() and depth.isdigit() and len(depth) < 6 and 1 <= int(depth) <= 65535:
        return int(depth)
    raise RestconfError("invalid-value", f"depth={depth[:64]}", kind="protocol")


def _cut(told: Any, depth: int) -> Any:
    """Without what lies deeper."""
    if isinstance(told, list):
        return [_cut(one, depth) for one in told]
    if not isinstance(told, dict):
        return told
    return {name: _cut(inner, depth - 1) for name, inner in told.items()} if depth > 1 else {}
