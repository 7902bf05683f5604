"""RESTCONF without a network: turns requests into responses (RFC 8040)."""

import base64
import binascii
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

from moefabric.emulator.ocs.cross_connects import RefusedError
from moefabric.emulator.ocs.restconf import resources, tree
from moefabric.emulator.ocs.restconf.datastore import OPERATIONS, Datastore, run
from moefabric.emulator.ocs.restconf.errors import ProtocolError, RestconfError, absent
from moefabric.emulator.ocs.restconf.resources import Request, Response
from moefabric.emulator.ocs.restconf.schema import JSON, OPERATION_INPUTS, PAIR, encode
from moefabric.emulator.ocs.restconf.tree import Op, Target, Tree, apply_edit, find, lookup

Answer = Callable[[Request], Response]
READABLE = "GET, HEAD, OPTIONS"
WRITABLE = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE"
LIBRARY = "2016-06-21"
"""Revision of ietf-yang-library (RFC 7895)."""
HOST_META = "/.well-known/host-meta"
"""Discovery of the root resource (RFC 8040, section 3.1)."""
NO_CACHE = ("Cache-Control", "no-cache")
LOGIN_NEEDED = (
    "HTTP Basic with a login of the device is needed: admin/root of the factory, or that of its "
    "profile; see `moefabric inspect`"
)
PATCHED = "disconnect-session"
"""Operation that accepts PATCH too, because a public client uses that method."""


class Service:
    """Executes requests."""

    def __init__(self, datastore: Datastore) -> None:
        self.datastore, self.device = datastore, datastore.device
        self.options = datastore.options
        names = [f"{node.module}:{name}" for name, node in OPERATION_INPUTS.items()]
        urls = {name: f"{self.options.root}/operations/{name}" for name in names}
        api: Tree = {"data": {}, "operations": urls, "yang-library-version": LIBRARY}
        top, operations = {"ietf-restconf:restconf": api}, {"ietf-restconf:operations": urls}
        self._constants: dict[str, Tree] = {
            "": top,
            "/": top,
            "/operations": operations,
            "/operations/": operations,
            "/yang-library-version": {"ietf-restconf:yang-library-version": LIBRARY},
        }
        """Resources that never change, by path below the API root."""

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
            error = ProtocolError("access-denied", LOGIN_NEEDED)
            challenge = ("WWW-Authenticate", 'Basic realm="optical-switch"')
            return self.error_response(error, [challenge])
        path, root, methods = request.path, self.options.root, READABLE
        inside = path.removeprefix(root) if path.startswith(root) else "/nowhere"
        try:
            methods, answer = self._resource(request, inside)
            if request.method != "OPTIONS":
                return answer(request)
        except RestconfError as error:
            is_method = error.status == HTTPStatus.METHOD_NOT_ALLOWED
            return self.error_response(error, [("Allow", methods)] if is_method else [])
        patch = [("Accept-Patch", JSON)] if inside.startswith("/data") else []
        return Response(200, (("Allow", methods), *patch))

    @staticmethod
    def error_response(error: RestconfError, headers: Iterable[tuple[str, str]] = ()) -> Response:
        """Return the response for an error."""
        content_type = ("Content-Type", JSON)
        return Response(error.status, (*headers, content_type), encode(error.body()))

    def _resource(self, request: Request, inside: str) -> tuple[str, Answer]:
        """Return a resource's methods and the function that answers other requests than OPTIONS.

        Args:
            inside: its path below the API root.
        """
        if inside in self._constants:
            return READABLE, partial(self._constant, self._constants[inside])
        if inside.startswith("/operations/"):
            qualified = inside.removeprefix("/operations/")
            module, _, name = qualified.rpartition(":")
            if name not in OPERATIONS or module not in ("", OPERATION_INPUTS[name].module):
                raise absent(qualified)
            methods = "OPTIONS, POST, PATCH" if name == PATCHED else "OPTIONS, POST"
            return methods, partial(self._operate, name)
        if inside == "/data" or inside.startswith("/data/"):
            target = tree.parse_target(inside.removeprefix("/data"))
            is_writable = target.steps and target.is_config
            return WRITABLE if is_writable else READABLE, partial(self._data, target)
        nothing = f"there is nothing at {request.path[:64]}; see {self.options.root}"
        raise ProtocolError("invalid-value", nothing, 404)

    def _host_meta(self) -> Response:
        xrd = "http://docs.oasis-open.org/ns/xri/xrd-1.0"
        body = f"<XRD xmlns='{xrd}'><Link rel='restconf' href='{self.options.root}'/></XRD>\n"
        return Response(200, (("Content-Type", "application/xrd+xml"),), body.encode())

    def _constant(self, document: Tree, request: Request) -> Response:
        """Answer a request for a resource that never changes."""
        if request.method not in ("GET", "HEAD"):
            raise ProtocolError("operation-not-supported", f"{request.method} is not for this")
        return _content(request, document)

    # ---- data

    def _data(self, target: Target, request: Request) -> Response:
        if request.method in ("GET", "HEAD"):
            return self._get(request, target)
        if request.method not in {op.value for op in Op}:
            unknown = f"{request.method[:64]} is not known"
            raise ProtocolError("operation-not-supported", unknown, 501)
        if not target.steps or not target.is_config:
            raise RestconfError("operation-not-supported", f"{target} can't be changed")
        return self._edit(request, target, Op(request.method))

    def _get(self, request: Request, target: Target) -> Response:
        content = self.datastore.read(target)
        document = resources.represent(self.datastore, target, content, request.query)
        now = resources.validators(self.datastore, target, content)
        if resources.is_unchanged(request.headers, now):
            return Response(304, (*now.items(), NO_CACHE))
        return _content(request, document, *now.items())

    def _edit(self, request: Request, target: Target, op: Op) -> Response:
        _check_group(request, "change", admin_only=target.top.name == "system-config")
        if request.query:
            raise ProtocolError("invalid-value", f"no {next(iter(request.query))[:64]} here")
        if target.is_whole_list and not self.options.whole_lists:
            raise RestconfError("operation-not-supported", f"{target} needs a key")
        value: Any = None if op is Op.DELETE else resources.edit_value(request, target, op)
        before = self.datastore.read(target)
        exists = lookup(before, target) is not None
        now = resources.validators(self.datastore, target, before)
        resources.check_preconditions(request.headers, now, exists=exists)
        if op is Op.DELETE:
            find(before, target)
        self.datastore.apply(target, before, apply_edit(before, op, target, value))
        now = resources.validators(self.datastore, target, self.datastore.read(target))
        headers = tuple(now.items())
        if op is Op.CREATE:
            if target.top.name == "cross-connects" and self.options.post_kept_s is not None:
                self._expire(value, self.options.post_kept_s)
            headers = (*headers, ("Location", resources.location(self.options.root, target, value)))
        is_new = op is Op.CREATE or (op is Op.REPLACE and not exists)
        settles = target.top.name in ("cross-connects", "ports")
        return Response(201 if is_new else 204, headers, settles=settles)

    def _expire(self, created: Tree, kept_s: float) -> None:
        """Schedule the removal of POSTed cross-connects, as some devices remove them."""
        pairs = {(entry["ingress"], entry["egress"]) for entry in created.get(PAIR.name, ())}

        def remove() -> None:
            with contextlib.suppress(RefusedError):  # no client waits for this
                self.device.change(lambda now: now.sub(pairs & set(now)))

        self.device.call_later(round(kept_s * 1e9), remove)

    # ---- operations

    def _operate(self, name: str, request: Request) -> Response:
        operation, node = OPERATIONS[name], OPERATION_INPUTS[name]
        if request.method != "POST" and (request.method, name) != ("PATCH", PATCHED):
            raise ProtocolError("operation-not-supported", "operations are POSTed")
        _check_group(request, "do", admin_only=operation.group == "admin")
        run(name, self.datastore, resources.operation_inputs(request, node))
        return Response(204, settles=operation.settles)


def _content(request: Request, document: Tree, *validators: tuple[str, str]) -> Response:
    """Return the response that shows a resource; RestconfError if the client takes no JSON."""
    if not request.accepts_json:
        raise ProtocolError("invalid-value", f"{JSON} can be had", 406)
    return Response(200, (("Content-Type", JSON), *validators, NO_CACHE), encode(document))


def _check_group(request: Request, verb: str, *, admin_only: bool) -> None:
    if request.group == "view" or (request.group == "user" and admin_only):
        raise RestconfError("access-denied", f"{request.user} may not {verb} this", 403)
