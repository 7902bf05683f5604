"""RESTCONF front end for several clients: HTTP/1.1, one request at a time on each connection.

h11 implements HTTP without sockets. A request is executed when it is complete, and answered when
its light has settled.
"""

from email.utils import formatdate
from http import HTTPStatus

import h11

from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.front_end import Client, IdleTimeout, ReplySlot
from moefabric.emulator.ocs.restconf.datastore import Datastore
from moefabric.emulator.ocs.restconf.dialect import RestconfOptions
from moefabric.emulator.ocs.restconf.errors import ProtocolError
from moefabric.emulator.ocs.restconf.resources import Request, Response
from moefabric.emulator.ocs.restconf.service import Service

HEAD_BYTES = 16 * 1024
BODY_BYTES = 1 << 20
PIPELINED_BYTES = 256 * 1024
"""A client that sends this many bytes before its response is disconnected."""


class RestconfFrontEnd:
    """RESTCONF front end of one switch."""

    def __init__(self, device: OcsDevice, options: RestconfOptions) -> None:
        self.device = device
        self.datastore = Datastore(device, options)
        self.service = Service(self.datastore)
        device.events.subscribe(lambda event: self.datastore.log.add(event, device.wall_s()))

    def open_session(self, client: Client) -> "RestconfSession":
        """Open the session of a new client."""
        return RestconfSession(self, client)

    def restart(self) -> None:
        """Cancel a scheduled reboot, and record the boot time."""
        self.datastore.booted_s = self.device.wall_s()
        self.datastore.restart.cancel()


class RestconfSession:
    """Session of a client: one HTTP connection."""

    def __init__(self, front_end: RestconfFrontEnd, client: Client) -> None:
        self._service, self._device, self._client = front_end.service, front_end.device, client
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._number = 0
        self._closed = self._waiting = False
        limit_ns = round(self._service.options.idle_s * 1e9)
        self._idle = IdleTimeout(
            self._device.timers, lambda: limit_ns, lambda: self._waiting, self._close
        )
        self._idle.restart()

    def receive(self, data: bytes) -> None:
        """Execute the requests that these bytes complete."""
        if not self._closed and data:  # h11 takes empty data for the end of the connection
            self._process(data)

    def end(self) -> None:
        """Log out after the connection has closed."""
        self._closed = True
        self._device.users.log_out(self._number)
        self._idle.stop()

    # ---- requests

    def _process(self, data: bytes = b"") -> None:
        """Execute all complete requests."""
        try:
            if data:
                self._http.receive_data(data)
            while not self._closed and not self._waiting and self._process_event():
                pass
        except h11.RemoteProtocolError as error:
            message = str(error).partition(": bytearray")[0]
            self._refuse(ProtocolError("malformed-message", message, error.error_status_hint))
            return
        if self._waiting and len(self._http.trailing_data[0]) > PIPELINED_BYTES:
            self._close()

    def _process_event(self) -> bool:
        """Process the next part of a request; return whether there was one."""
        event = self._http.next_event()
        match event:
            case h11.Request():
                self._head = event
            case h11.Data():
                self._body += event.data
                if len(self._body) > BODY_BYTES:
                    message = f"a request has {BODY_BYTES} bytes at most"
                    self._refuse(ProtocolError("too-big", message))
            case h11.EndOfMessage():
                self._answer()
            case _:  # NEED_DATA, PAUSED, or the client has closed
                if event is h11.NEED_DATA and self._http.they_are_waiting_for_100_continue:
                    proceed = h11.InformationalResponse(
                        status_code=100, headers=[], reason=b"Continue"
                    )
                    self._client.send(self._http.send(proceed) or b"")
                return False
        return True

    def _answer(self) -> None:
        request, slot = self._service.authenticated(self._request()), self._client.reserve_reply()
        self._log_in(request.user)
        response = self._service.execute(request)
        self._head, self._body = None, bytearray()
        if not response.settles or self._service.options.completes == "accepted":
            self._send(slot, request, response)
            return
        self._waiting = True

        def send() -> None:
            self._waiting = False
            if not self._closed:
                self._send(slot, request, response)
                self._process()

        self._device.when_settled(send)

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

    def _log_in(self, user: str) -> None:
        """Register the user of a request as the user of this session."""
        users = self._device.users
        if user != (users.user_of(self._number) or ""):
            users.log_out(self._number)
            peer = self._client.peer
            self._number = users.log_in(user, "restconf", peer, self._close) if user else 0

    # ---- responses

    def _send(self, slot: ReplySlot, request: Request, response: Response) -> None:
        date = formatdate(self._device.wall_s(), usegmt=True)
        headers = [("Date", date), *response.headers]
        if response.body or response.status not in (204, 304):
            headers.append(("Content-Length", str(len(response.body))))
        body = b"" if request.method == "HEAD" else response.body
        slot.fill(self._frame(response, headers, body))
        self._idle.active()
        if self._http.our_state is h11.MUST_CLOSE:
            self._close()
        else:
            self._http.start_next_cycle()

    def _refuse(self, error: ProtocolError) -> None:
        """Answer an invalid or incomplete request, and close."""
        response = self._service.error_response(error)
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            length = ("Content-Length", str(len(response.body)))
            headers = [*response.headers, length, ("Connection", "close")]
            self._client.reserve_reply().fill(self._frame(response, headers, response.body))
        self._close()

    def _frame(self, response: Response, headers: list[tuple[str, str]], body: bytes) -> bytes:
        reason = HTTPStatus(response.status).phrase.encode()
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        data = [h11.Data(data=body)] if body else []
        return b"".join(self._http.send(part) or b"" for part in (head, *data, h11.EndOfMessage()))

    def _close(self) -> None:
        self._closed = True
        self._client.close()
