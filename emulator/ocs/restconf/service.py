"""RESTCONF without a network: turns requests into responses (RFC 8040)."""

import base64
import binascii
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from moefabric.emulator.ocs.cross_connects import Pair, RefusedError
from moefabric.emulator.ocs.restconf.datastore import Datastore
from moefabric.emulator.ocs.restconf.edit import Op, Tree, apply_edit, find
from moefabric.emulator.ocs.restconf.encoding import JSON, XML
from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError, absent
from moefabric.emulator.ocs.restconf.messages import (
    Request,
    Response,
    edit_value,
    encode,
    operation_inputs,
)
from moefabric.emulator.ocs.restconf.operations import OPERATIONS, run
from moefabric.emulator.ocs.restconf.representation import (
    check_preconditions,
    is_unchanged,
    location,
    read,
    represent,
    validators,
)
from moefabric.emulator.ocs.restconf.schema import OPERATION_INPUTS, PAIR
from moefabric.emulator.ocs.restconf.target import Target, parse_target

READABLE = "GET, HEAD, OPTIONS"
WRITABLE = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE"
LIBRARY = "2016-06-21"
"""Revision of ietf-yang-library (RFC 7895)."""
HOST_META = "/.well-known/host-meta"
"""Discovery of the root resource (RFC 8040, section 3.1)."""
NO_CACHE = ("Cache-Control", "no-cache")
PATCHED = "disconnect-session"
"""Operation that accepts PATCH too, because a public client uses that method."""


class Service:
    """Executes requests."""

    def __init__(self, datastore: Datastore) -> None:
        self.datastore, self.device = datastore, datastore.device
        self.options = datastore.options

    def authenticated(self, request: Request) -> Request:
        """Return a request with its user, if the credentials are valid (Basic, RFC 7617)."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        try:
            text = base64.b64decode(credentials.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            return request
        (name, colon, password), users = text.partition(":"), self.device.users
        if scheme.lower() != "basic" or not colon or not users.accepts(name, password):
            return request
        return replace(request, user=name, group=users.group(name))

    def execute(self, request: Request) -> Response:
        """Execute a request. A request that is refused changes nothing."""
        if request.path == HOST_META and request.method in ("GET", "HEAD"):
            return self._host_meta()
        if not request.user:
            error = ProtocolError("access-denied", "who are you?")
            challenge = ("WWW-Authenticate", 'Basic realm="optical-switch"')
            return self.error_response(error, request, [challenge])
        path, root = request.path, self.options.root
        inside = path.removeprefix(root) if path.startswith(root) else "/nowhere"
        try:
            return self._route(request, inside)
        except RestconfError as error:
            is_method = error.status == HTTPStatus.METHOD_NOT_ALLOWED
            allow = [("Allow", self._allowed_methods(inside))] if is_method else []
            return self.error_response(error, request, allow)

    def error_response(
        self, error: RestconfError, request: Request, headers: Iterable[tuple[str, str]] = ()
    ) -> Response:
        """Return the response for an error, in the encoding that the client accepts."""
        media = request.accepted or JSON
        content_type = ("Content-Type", media)
        return Response(error.status, (*headers, content_type), encode(error.body(), media))

    # ---- by path

    def _route(self, request: Request, inside: str) -> Response:
        """Execute a request; `inside` is its path below the API root."""
        root = "ietf-restconf"
        if inside in ("", "/"):
            operations = self._operations()
            content = {"data": {}, "operations": operations, "yang-library-version": LIBRARY}
            return self._constant(request, {f"{root}:restconf": content})
        if inside == "/yang-library-version":
            return self._constant(request, {f"{root}:yang-library-version": LIBRARY})
        if inside in ("/operations", "/operations/"):
            return self._constant(request, {f"{root}:operations": self._operations()})
        if inside.startswith("/operations/"):
            return self._operate(request, inside)
        if inside == "/data" or inside.startswith("/data/"):
            return self._data(request, parse_target(inside.removeprefix("/data")), inside)
        raise ProtocolError("invalid-value", f"there is nothing at {request.path[:64]}", 404)

    def _host_meta(self) -> Response:
        xrd = "http://docs.oasis-open.org/ns/xri/xrd-1.0"
        body = f"<XRD xmlns='{xrd}'><Link rel='restconf' href='{self.options.root}'/></XRD>\n"
        return Response(200, (("Content-Type", "application/xrd+xml"),), body.encode())

    def _operations(self) -> Tree:
        names = {name: f"{OPERATION_INPUTS[name].module}:{name}" for name in OPERATIONS}
        return {name: f"{self.options.root}/operations/{name}" for name in names.values()}

    def _constant(self, request: Request, document: Tree) -> Response:
        """Answer a request for a resource that never changes."""
        if request.method == "OPTIONS":
            return Response(200, (("Allow", READABLE),))
        if request.method not in ("GET", "HEAD"):
            raise ProtocolError("operation-not-supported", f"{request.method} is not for this")
        media = request.media
        return Response(200, (("Content-Type", media), NO_CACHE), encode(document, media))

    def _allowed_methods(self, inside: str) -> str:
        if inside.startswith("/operations/"):
            return "OPTIONS, POST, PATCH" if inside.endswith(PATCHED) else "OPTIONS, POST"
        if not inside.startswith("/data/"):
            return READABLE
        try:
            target = parse_target(inside.removeprefix("/data"))
        except RestconfError:
            return READABLE
        return WRITABLE if target.steps and target.is_config else READABLE

    # ---- data

    def _data(self, request: Request, target: Target, inside: str) -> Response:
        if request.method == "OPTIONS":
            allow = ("Allow", self._allowed_methods(inside))
            return Response(200, (allow, ("Accept-Patch", f"{JSON}, {XML}")))
        if request.method in ("GET", "HEAD"):
            return self._get(request, target)
        if request.method not in {op.value for op in Op}:
            unknown = f"{request.method[:64]} is not known"
            raise ProtocolError("operation-not-supported", unknown, 501)
        if not target.steps or not target.is_config:
            raise RestconfError("operation-not-supported", f"{target} can't be changed")
        return self._edit(request, target, Op(request.method))

    def _get(self, request: Request, target: Target) -> Response:
        tree = read(self.datastore, target)
        document = represent(self.datastore, target, tree, request.query, request.media)
        now = validators(self.datastore, target, tree)
        if is_unchanged(request.headers, now):
            return Response(304, (*now.headers, NO_CACHE))
        media = request.media
        headers = (("Content-Type", media), *now.headers, NO_CACHE)
        return Response(200, headers, encode(document, media))

    def _edit(self, request: Request, target: Target, op: Op) -> Response:
        is_system = target.top.name == "system-config"
        self._check_group(request, "change", admin_only=is_system)
        if request.query:
            raise ProtocolError("invalid-value", f"no {next(iter(request.query))[:64]} here")
        if target.is_whole_list and not self.options.whole_lists:
            raise RestconfError("operation-not-supported", f"{target} needs a key")
        value: Any = None if op is Op.DELETE else edit_value(request, target, op)
        before = read(self.datastore, target)
        exists = _exists(before, target)
        now = validators(self.datastore, target, before)
        check_preconditions(request.headers, now, exists=exists)
        if op is Op.DELETE:
            find(before, target.steps)
        after = apply_edit(before, op, target, value)
        settles = self.datastore.apply(target.top.name, before, after)
        headers = validators(self.datastore, target, read(self.datastore, target)).headers
        if op is Op.CREATE:
            if target.top.name == "cross-connects":
                self._expire(value)
            headers = (*headers, ("Location", location(self.options.root, target, value)))
        is_new = op is Op.CREATE or (op is Op.REPLACE and not exists)
        return Response(201 if is_new else 204, headers, settles=settles and self._waits)

    @property
    def _waits(self) -> bool:
        """Whether a change is answered when its light has settled."""
        return self.options.completes == "settled"

    def _check_group(self, request: Request, verb: str, *, admin_only: bool) -> None:
        if request.group == "view" or (request.group == "user" and admin_only):
            raise RestconfError("access-denied", f"{request.user} may not {verb} this", 403)

    def _expire(self, created: Tree) -> None:
        """Schedule the removal of POSTed cross-connects, as some devices remove them."""
        kept_s = self.options.post_kept_s
        if kept_s is not None:
            pairs = {(entry["ingress"], entry["egress"]) for entry in created.get(PAIR.name, ())}
            due_ns = self.device.now_ns() + round(kept_s * 1e9)
            self.device.timers.call_at(due_ns, lambda: self._remove(pairs))

    def _remove(self, pairs: set[Pair]) -> None:
        with contextlib.suppress(RefusedError):  # no client waits for this
            self.device.change(lambda now: now.sub(pairs & set(now)))

    # ---- operations

    def _operate(self, request: Request, inside: str) -> Response:
        qualified = inside.removeprefix("/operations/")
        module, _, name = qualified.rpartition(":")
        if name not in OPERATIONS or module not in ("", OPERATION_INPUTS[name].module):
            raise absent(qualified)
        operation, node = OPERATIONS[name], OPERATION_INPUTS[name]
        if request.method == "OPTIONS":
            return Response(200, (("Allow", self._allowed_methods(inside)),))
        if request.method != "POST" and (request.method, name) != ("PATCH", PATCHED):
            raise ProtocolError("operation-not-supported", "operations are POSTed")
        self._check_group(request, "do", admin_only=operation.group == "admin")
        run(operation, node, self.datastore, operation_inputs(request, node))
        return Response(204, settles=operation.settles and self._waits)


def _exists(before: Tree, target: Target) -> bool:
    try:
        find(before, target.steps)
    except RestconfError:
        return False
    return True
