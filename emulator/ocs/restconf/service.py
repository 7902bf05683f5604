"""Requests and their answers: what each method does to which resource, on which conditions, for whom (RFC 8040)."""

import base64
import binascii
import contextlib
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from emulator.ocs.matching import Pair, RefusedError
from emulator.ocs.restconf.bodies import edit_value, operation_input
from emulator.ocs.restconf.conditions import must_hold, unchanged
from emulator.ocs.restconf.data import Data
from emulator.ocs.restconf.edit import Edit, Op, Tree, edited, found
from emulator.ocs.restconf.encoding import JSON, XML
from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.messages import Asked, Request, Response, written
from emulator.ocs.restconf.operations import OPERATIONS, run
from emulator.ocs.restconf.schema import PAIR
from emulator.ocs.restconf.shown import location, read, resource, validators
from emulator.ocs.restconf.target import Target, target
from emulator.ocs.store import Store
from moefabric.ocs_manners import RestconfManners

READABLE = "GET, HEAD, OPTIONS"
WRITABLE = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE"
LIBRARY = "2016-06-21"
HOST_META = "/.well-known/host-meta"
NO_CACHE = ("Cache-Control", "no-cache")
PATCHED = "disconnect-session"
"""A public client PATCHes this one operation."""


class Service:
    """RESTCONF without a network: requests to responses."""

    def __init__(self, data: Data) -> None:
        self.data = data

    @property
    def store(self) -> Store:
        """The switch."""
        return self.data.store

    @property
    def manners(self) -> RestconfManners:
        """How it speaks RESTCONF."""
        return self.store.profile.restconf

    def user(self, request: Request) -> str | None:
        """Who asks, if it is somebody who may (Basic, RFC 7617)."""
        scheme, _, told = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, colon, password = base64.b64decode(told.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        return name if colon and self.store.users.admits(name, password) else None

    def answer(self, request: Request) -> Response:
        """What a request is answered. Nothing has changed if it is refused."""
        path, _, query = request.target.partition("?")
        if path == HOST_META and request.method in ("GET", "HEAD"):
            return self._host_meta()
        user = self.user(request)
        if user is None:
            wrong = RestconfError("access-denied", "who are you?", kind="protocol")
            return self.error(wrong, request, (("WWW-Authenticate", 'Basic realm="optical-switch"'),))
        group = self.store.users.group(user)
        asked = Asked(request, user, group, path, dict(parse_qsl(query, keep_blank_values=True)))
        try:
            return self._routed(asked)
        except RestconfError as wrong:
            more = (("Allow", self._allowed(asked)),) if wrong.status == HTTPStatus.METHOD_NOT_ALLOWED else ()
            return self.error(wrong, request, more)

    def error(self, wrong: RestconfError, request: Request, more: Iterable[tuple[str, str]] = ()) -> Response:
        """A refusal, in the client's encoding."""
        media = request.accepted or JSON
        return Response(wrong.status, (*more, ("Content-Type", media)), written(wrong.body(), media))

    # ---- by path

    def _routed(self, asked: Asked) -> Response:
        inside = self._inside(asked)
        if inside in ("", "/"):
            told = {"data": {}, "operations": self._operations(), "yang-library-version": LIBRARY}
            return self._shown(asked, {"ietf-restconf:restconf": told})
        if inside == "/yang-library-version":
            return self._shown(asked, {"ietf-restconf:yang-library-version": LIBRARY})
        if inside in ("/operations", "/operations/"):
            return self._shown(asked, {"ietf-restconf:operations": self._operations()})
        if inside.startswith("/operations/"):
            return self._operate(asked, inside.removeprefix("/operations/"))
        if inside == "/data" or inside.startswith("/data/"):
            return self._data(asked, target(inside.removeprefix("/data")))
        raise RestconfError(
            "invalid-value", f"there is nothing at {asked.path[:64]}", status=404, kind="protocol"
        )

    def _inside(self, asked: Asked) -> str:
        """The path below the root of the interface."""
        root = self.manners.root
        return asked.path.removeprefix(root) if asked.path.startswith(root) else "/nowhere"

    def _host_meta(self) -> Response:
        xrd = "http://docs.oasis-open.org/ns/xri/xrd-1.0"
        body = f"<XRD xmlns='{xrd}'><Link rel='restconf' href='{self.manners.root}'/></XRD>\n"
        return Response(200, (("Content-Type", "application/xrd+xml"),), body.encode())

    def _operations(self) -> Tree:
        names = (f"{one.node.module}:{name}" for name, one in OPERATIONS.items())
        return {name: f"{self.manners.root}/operations/{name}" for name in names}

    def _shown(self, asked: Asked, told: Tree) -> Response:
        """Something that can only be read, and never changes."""
        if asked.method == "OPTIONS":
            return Response(200, (("Allow", READABLE),))
        if asked.method not in ("GET", "HEAD"):
            raise RestconfError("operation-not-supported", f"{asked.method} is not for this", kind="protocol")
        return Response(200, (("Content-Type", asked.media), NO_CACHE), written(told, asked.media))

    def _allowed(self, asked: Asked) -> str:
        """The methods that a resource has."""
        inside = self._inside(asked)
        if inside.startswith("/operations/"):
            return "OPTIONS, POST, PATCH" if inside.endswith(PATCHED) else "OPTIONS, POST"
        try:
            about = target(inside.removeprefix("/data")) if inside.startswith("/data/") else Target()
        except RestconfError:
            return READABLE
        return WRITABLE if about.steps and about.is_config else READABLE

    # ---- data

    def _data(self, asked: Asked, about: Target) -> Response:
        if asked.method == "OPTIONS":
            return Response(200, (("Allow", self._allowed(asked)), ("Accept-Patch", f"{JSON}, {XML}")))
        if asked.method in ("GET", "HEAD"):
            return self._get(asked, about)
        if asked.method not in {op.value for op in Op}:
            raise RestconfError(
                "operation-not-supported", f"{asked.method[:64]} is not known", status=501, kind="protocol"
            )
        if not about.steps or not about.is_config:
            raise RestconfError("operation-not-supported", f"{about} can't be changed")
        return self._edit(asked, about, Op(asked.method))

    def _get(self, asked: Asked, about: Target) -> Response:
        tree = read(self.data, about)
        told = resource(self.data, about, tree, asked.query, asked.media)
        now = validators(self.data, about, tree)
        if unchanged(asked.request.headers, now):
            return Response(304, (*now.headers, NO_CACHE))
        return Response(
            200, (("Content-Type", asked.media), *now.headers, NO_CACHE), written(told, asked.media)
        )

    def _edit(self, asked: Asked, about: Target, op: Op) -> Response:
        if asked.group == "view" or (asked.group == "user" and about.top.name == "system-config"):
            raise RestconfError("access-denied", f"{asked.user} may not change this", status=403)
        if asked.query:
            raise RestconfError("invalid-value", f"no {next(iter(asked.query))[:64]} here", kind="protocol")
        if about.is_whole_list and not self.manners.whole_lists:
            raise RestconfError("operation-not-supported", f"{about} needs a key")
        value = None if op is Op.DELETE else edit_value(asked.request, about, op)
        before = read(self.data, about)
        there = _is_there(before, about)
        must_hold(asked.request.headers, validators(self.data, about, before), there=there)
        if op is Op.DELETE:
            found(before, about.steps)
        settles = self.data.apply(about.top.name, before, edited(before, Edit(op, about, value)))
        waits = settles and self.manners.completes == "settled"
        return self._changed(about, op, value, there=there, waits=waits)

    def _changed(self, about: Target, op: Op, value: Any, *, there: bool, waits: bool) -> Response:
        headers = validators(self.data, about, read(self.data, about)).headers
        if op is Op.CREATE:
            if about.top.name == "cross-connects":
                self._forget_later(value)
            headers = (*headers, ("Location", location(self.manners.root, about, value)))
        is_new = op is Op.CREATE or (op is Op.REPLACE and not there)
        return Response(201 if is_new else 204, headers, settles=waits)

    def _forget_later(self, made: Tree) -> None:
        """Some devices keep what is POSTed for a while only."""
        kept_s = self.manners.post_kept_s
        if kept_s is not None:
            pairs = {(one["ingress"], one["egress"]) for one in made.get(PAIR.name, ())}
            timers = self.store.timers
            timers.at(timers.now_ns() + round(kept_s * 1e9), lambda: self._forget(pairs))

    def _forget(self, pairs: set[Pair]) -> None:
        # Nobody waits for this, so nobody need hear that the switch refuses it.
        with contextlib.suppress(RefusedError):
            self.store.change(lambda now: now.sub(pairs & set(now)))

    # ---- operations

    def _operate(self, asked: Asked, name: str) -> Response:
        module, _, plain = name.rpartition(":")
        operation = OPERATIONS.get(plain)
        if operation is None or module not in ("", operation.node.module):
            raise RestconfError("invalid-value", f"there is no {name[:64]}", status=404)
        if asked.method == "OPTIONS":
            return Response(200, (("Allow", self._allowed(asked)),))
        if asked.method != "POST" and (asked.method, plain) != ("PATCH", PATCHED):
            raise RestconfError("operation-not-supported", "operations are POSTed", kind="protocol")
        if asked.group == "view" or (asked.group == "user" and operation.least == "admin"):
            raise RestconfError("access-denied", f"{asked.user} may not do this", status=403)
        run(operation, self.data, operation_input(asked.request, operation.node))
        return Response(204, settles=operation.settles and self.manners.completes == "settled")


def _is_there(before: Tree, about: Target) -> bool:
    try:
        found(before, about.steps)
    except RestconfError:
        return False
    return True
