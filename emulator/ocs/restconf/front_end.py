"""RESTCONF for several clients at once: HTTP/1.1 on each connection, one request at a time, answered when its light has settled.

The protocol is h11's, which knows no sockets; a request is done when all of it has come, and not before.
"""

from email.utils import formatdate

import h11

from emulator.loop import Timer
from emulator.ocs.events import Event
from emulator.ocs.frontend import Turn, Wire
from emulator.ocs.restconf.data import Data
from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.messages import Request, Response
from emulator.ocs.restconf.service import Service
from emulator.ocs.store import Store

HEAD_BYTES = 16 * 1024
BODY_BYTES = 1 << 20
AHEAD_BYTES = 256 * 1024
"""A client that sends so much without waiting for its answer is hung up on."""


class Restconf:
    """The RESTCONF of one switch."""

    name = "restconf"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.data = Data(store)
        self.service = Service(self.data)
        store.subscribe(self._heard)

    def session(self, wire: Wire) -> "RestconfSession":
        return RestconfSession(self, wire)

    def restarted(self) -> None:
        self.data.booted_s = self.store.wall_s()
        self.data.restart = None

    def _heard(self, event: Event) -> None:
        self.data.journal.heard(event, self.store.wall_s())


class RestconfSession:
    """One client's connection."""

    def __init__(self, switch: Restconf, wire: Wire) -> None:
        self._switch, self._wire = switch, wire
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._user, self._number = "", 0
        self._is_closed = self._waits = self._is_head = False
        self._since_ns = switch.store.now_ns()
        self._idle: Timer | None = None
        self._watch()

    def heard(self, data: bytes) -> None:
        if self._is_closed or not data:  # to h11, nothing is the end
            return
        try:
            self._http.receive_data(data)
            self._go()
        except h11.RemoteProtocolError as wrong:
            self._protest(wrong)

    def gone(self) -> None:
        self._is_closed = True
        self._switch.store.users.left(self._number)
        if self._idle is not None:
            self._idle.cancel()

    # ---- requests

    def _go(self) -> None:
        """Answer what has come whole. h11.RemoteProtocolError for what isn't HTTP."""
        while not self._is_closed and not self._waits:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                    self._wire.send(self._http.send(go_on) or b"")
                return
            if isinstance(event, h11.Request):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_BYTES:
                    wrong = RestconfError(
                        "too-big", f"a request has {BODY_BYTES} bytes at most", kind="protocol"
                    )
                    self._refuse(wrong)
            elif isinstance(event, h11.EndOfMessage):
                self._answer()
            else:  # PAUSED, or the client has closed
                return
        if self._waits and len(self._http.trailing_data[0]) > AHEAD_BYTES:
            self._close()

    def _answer(self) -> None:
        asked, turn = self._request(), self._wire.turn()
        self._log_in(asked)
        response = self._switch.service.answer(asked)
        self._head, self._body, self._is_head = None, bytearray(), asked.method == "HEAD"
        if not response.settles:
            self._say(turn, response)
            return
        self._waits = True

        def settled() -> None:
            self._waits = False
            if not self._is_closed:
                self._say(turn, response)
                self._go_on()

        self._switch.store.when_settled(settled)

    def _go_on(self) -> None:
        """With what has come while it waited."""
        try:
            self._go()
        except h11.RemoteProtocolError as wrong:
            self._protest(wrong)

    def _request(self) -> Request:
        head = self._head
        assert head is not None
        headers: dict[str, str] = {}
        for name, value in head.headers:
            key = name.decode("ascii", "replace")
            text = value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        method = head.method.decode("ascii", "replace")
        return Request(method, head.target.decode("ascii", "replace"), headers, bytes(self._body))

    def _log_in(self, asked: Request) -> None:
        """Be listed among the sessions as whoever asks."""
        service, users = self._switch.service, self._switch.store.users
        user = service.user(asked) or ""
        if user != self._user or (user and self._number not in users.log_ins):
            users.left(self._number)
            self._number = users.entered(user, self._switch.name, self._wire.peer, self._close) if user else 0
            self._user = user

    # ---- responses

    def _say(self, turn: Turn, response: Response) -> None:
        date = formatdate(self._switch.store.wall_s(), usegmt=True)
        headers = [("Date", date), *response.headers]
        if response.body or response.status not in (204, 304):
            headers.append(("Content-Length", str(len(response.body))))
        head = h11.Response(status_code=response.status, headers=headers, reason=response.reason.encode())
        parts = [self._http.send(head)]
        if response.body and not self._is_head:
            parts.append(self._http.send(h11.Data(data=response.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        turn.say(b"".join(part or b"" for part in parts))
        self._since_ns = self._switch.store.now_ns()
        if self._http.our_state is h11.MUST_CLOSE:
            self._close()
        else:
            self._http.start_next_cycle()

    def _refuse(self, wrong: RestconfError) -> None:
        """Say no before the whole request has come, and hang up."""
        request = self._request() if self._head is not None else Request("", "")
        self._last(self._switch.service.error(wrong, request))

    def _protest(self, wrong: h11.RemoteProtocolError) -> None:
        """Say that this is no HTTP, and hang up."""
        why = str(wrong).partition(": bytearray")[0]
        said = RestconfError("malformed-message", why, status=wrong.error_status_hint, kind="protocol")
        self._last(self._switch.service.error(said, Request("", "")))

    def _last(self, response: Response) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [
                *response.headers,
                ("Content-Length", str(len(response.body))),
                ("Connection", "close"),
            ]
            head = h11.Response(status_code=response.status, headers=headers, reason=response.reason.encode())
            parts = [self._http.send(head), self._http.send(h11.Data(data=response.body))]
            self._wire.turn().say(
                b"".join(part or b"" for part in (*parts, self._http.send(h11.EndOfMessage())))
            )
        self._close()

    def _close(self) -> None:
        self._is_closed = True
        self._wire.close()

    # ---- silence

    def _watch(self) -> None:
        limit_ns = round(self._switch.service.manners.idle_s * 1e9)
        self._idle = (
            self._switch.store.timers.at(self._since_ns + limit_ns, self._was_idle) if limit_ns else None
        )

    def _was_idle(self) -> None:
        if self._is_closed:
            return
        now, limit_ns = self._switch.store.now_ns(), round(self._switch.service.manners.idle_s * 1e9)
        if self._waits:
            self._since_ns = now
        if now < self._since_ns + limit_ns:
            self._watch()
        else:
            self._close()
