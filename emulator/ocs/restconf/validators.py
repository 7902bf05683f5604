"""Conditional requests (RFC 7232): validators of a resource, and preconditions on them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime

from moefabric.emulator.ocs.restconf.datastore import Datastore
from moefabric.emulator.ocs.restconf.edit import Tree, find
from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError
from moefabric.emulator.ocs.restconf.target import Target

CLOCK = "current-datetime"
"""A leaf that changes with time, excluded from the entity-tag."""


@dataclass(frozen=True)
class Validators:
    """The quoted entity-tag of a resource, and the time of its last change if it is known."""

    etag: str
    changed: str = ""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The header fields of a response."""
        return (("ETag", self.etag), *((("Last-Modified", self.changed),) if self.changed else ()))


def validators(datastore: Datastore, target: Target, tree: Tree) -> Validators:
    """Return the validators of a resource.

    Args:
        datastore: the datastore.
        target: the resource.
        tree: the result of `representation.read` for the target.

    Returns:
        Validators whose entity-tag is the version of cross-connects, or a hash of other data.
    """
    device = datastore.device
    if target.steps and target.top.name == "cross-connects":
        return Validators(f'"{device.version}"', formatdate(device.changed_s, usegmt=True))
    state: object
    if target.steps:
        try:
            state = find(_without_clock(tree), target.steps)
        except RestconfError:
            state = None
    else:
        containers = {name: _without_clock(inner) for name, inner in tree.items()}
        containers.pop("sessions")
        state = [device.version, containers]
    text = json.dumps(state, sort_keys=True).encode()
    return Validators(f'"{hashlib.blake2b(text, digest_size=8).hexdigest()}"')


def is_unchanged(headers: Mapping[str, str], now: Validators) -> bool:
    """Return whether the client's copy of a resource is current."""
    if "if-none-match" in headers:
        return _matches(headers["if-none-match"], now.etag)
    return bool(now.changed) and _not_after(now.changed, headers.get("if-modified-since", ""))


def check_preconditions(headers: Mapping[str, str], now: Validators, *, exists: bool) -> None:
    """Check the preconditions of a client that writes a resource.

    Raises:
        RestconfError: if a precondition does not hold.
    """
    if "if-match" in headers and not (exists and _matches(headers["if-match"], now.etag)):
        raise ProtocolError("operation-failed", "changed since: If-Match does not hold")
    if "if-none-match" in headers and exists and _matches(headers["if-none-match"], now.etag):
        raise ProtocolError("operation-failed", "there already: If-None-Match does not hold")
    since = headers.get("if-unmodified-since", "")
    if "if-match" not in headers and since and now.changed and not _not_after(now.changed, since):
        raise ProtocolError("operation-failed", "changed since: If-Unmodified-Since does not hold")


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
