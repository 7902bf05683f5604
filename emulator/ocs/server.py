"""The optical switch's place on the network: SCPI over TCP, for several clients at once.

One thread, one wait: a client that is slow, silent or gone holds up nobody else. A line is done when its end has come, and
not before; replies go out in the order of their lines, each no sooner than its time (`*opc?` waits for light).
"""

import contextlib
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from emulator.light import Crossbar, Ports
from emulator.ocs.scpi import Device, Said, ScpiError, answer
from emulator.ocs.store import Busy, Store
from moefabric.errors import FabricError

log = logging.getLogger(__name__)

LINE_BYTES = 64 * 1024
UNREAD_BYTES = 64 * 1024  # of replies; a client that doesn't read them isn't read either
CLIENTS = 64
MANUFACTURER, FIRMWARE = "Polatis", "6.5.2.18"


def identity(ports: Ports, serial: str) -> str:
    """What `*idn?` says: vendor, model, serial number, firmware; drivers take the size from the model's `-12x12-`."""
    return f"{MANUFACTURER},N-OST-{ports}-LU1-DMHNS,{serial},{FIRMWARE}"


class Switch:
    """An optical switch: what it knows, and the mirrors that follow."""

    def __init__(self, crossbar: Crossbar, settle_ns: int, serial: str, busy: Busy = Busy.MOVE) -> None:
        """Take the mirrors as they are: what is lit stays lit."""
        self._crossbar = crossbar
        store = Store(crossbar.ports, settle_ns, busy, crossbar.show())
        self.device = Device(identity(crossbar.ports, serial), store)

    def answer(self, line: str, now_ns: int) -> Said | None:
        """Do a line: the mirrors have moved when this returns, and what they light is lit at its own time."""
        before = self.device
        after, said = answer(before, line, now_ns)
        if after.store.lights != before.store.lights:
            try:
                self._crossbar.load(after.store.lights)
            except (FabricError, OSError) as failed:
                log.error("mirrors did not move", extra={"why": str(failed)})  # noqa: TRY400 - the reason says it all
                after = replace(after, store=before.store).with_error(ScpiError(-240, str(failed)))
        self.device = after
        return said

    def refuse(self, error: ScpiError) -> None:
        """Queue an error that no command line led to."""
        self.device = self.device.with_error(error)


@dataclass
class Client:
    """One connection: bytes of a line still to be ended, replies still to be due, bytes still to be sent."""

    sock: socket.socket
    unended: bytes = b""
    overlong: bool = False
    replies: deque[Said] = field(default_factory=deque)
    unsent: bytes = b""
    half_closed: bool = False

    @property
    def due_ns(self) -> int | None:
        return self.replies[0].at_ns if self.replies else None

    @property
    def finished(self) -> bool:
        return self.half_closed and not self.replies and not self.unsent

    @property
    def wants_more(self) -> bool:
        return (
            not self.half_closed and len(self.unsent) + sum(len(r.text) for r in self.replies) < UNREAD_BYTES
        )


class Server:
    """Serves one switch on a listening socket until told to stop."""

    def __init__(
        self, switch: Switch, listener: socket.socket, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._switch, self._listener, self._clock_ns = switch, listener, clock_ns
        # select(2) keeps time to the microsecond, epoll(7) to the millisecond; the few clients here cost it nothing.
        self._waiting = selectors.SelectSelector()
        self._clients: dict[int, Client] = {}
        listener.setblocking(False)
        self._waiting.register(listener, selectors.EVENT_READ)

    def serve(self, *stops: socket.socket) -> None:
        """Answer until one of `stops` has something to read, or is closed at its other end."""
        for stop in stops:
            self._waiting.register(stop, selectors.EVENT_READ)
        try:
            while True:
                ready = self._waiting.select(self._patience_s())
                sockets = [(key.fileobj, events) for key, events in ready]
                if any(sock in stops for sock, _ in sockets):
                    return
                for sock, events in sockets:
                    self._attend(sock, events)
                for client in list(self._clients.values()):
                    self._send(client)
        finally:
            self._close()

    def _close(self) -> None:
        for client in list(self._clients.values()):
            self._part(client)
        self._waiting.close()
        self._listener.close()

    def _patience_s(self) -> float | None:
        """Seconds until the next reply is due; None if none is."""
        due = [client.due_ns for client in self._clients.values() if client.due_ns is not None]
        return max(0, min(due) - self._clock_ns()) / 1e9 if due else None

    def _attend(self, sock: object, events: int) -> None:
        if sock is self._listener:
            self._welcome()
            return
        client = self._clients.get(sock.fileno()) if isinstance(sock, socket.socket) else None
        if client and events & selectors.EVENT_READ:
            self._hear(client)

    def _welcome(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # gone before it was welcomed
            return
        if len(self._clients) >= CLIENTS:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._clients[sock.fileno()] = Client(sock)
        self._waiting.register(sock, selectors.EVENT_READ)

    def _hear(self, client: Client) -> None:
        try:
            heard = client.sock.recv(LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._part(client)
            return
        if not heard:
            client.half_closed = True  # an unended line is no command
            return
        *lines, client.unended = (client.unended + heard).split(b"\n")
        for line in lines:
            self._line(client, line)
        if len(client.unended) > LINE_BYTES:
            client.overlong, client.unended = True, b""

    def _line(self, client: Client, line: bytes) -> None:
        if client.overlong or len(line) > LINE_BYTES:
            client.overlong = False
            self._switch.refuse(ScpiError(-363, f"a line has at most {LINE_BYTES} bytes"))
            return
        said = self._switch.answer(line.decode("ascii", errors="replace").strip(), self._clock_ns())
        if said:
            client.replies.append(said)

    def _send(self, client: Client) -> None:
        """Send what is due, and wait for what the client's state calls for."""
        now = self._clock_ns()
        while client.replies and client.replies[0].at_ns <= now:
            client.unsent += client.replies.popleft().text.encode() + b"\n"
        if client.unsent:
            try:
                client.unsent = client.unsent[client.sock.send(client.unsent) :]
            except BlockingIOError:
                pass
            except OSError:
                self._part(client)
                return
        if client.finished:
            self._part(client)
            return
        self._wait_for(client)

    def _wait_for(self, client: Client) -> None:
        events = selectors.EVENT_READ * client.wants_more | selectors.EVENT_WRITE * bool(client.unsent)
        registered = self._waiting.get_map().get(client.sock)
        if registered is None and events:
            self._waiting.register(client.sock, events)
        elif registered is not None and not events:
            self._waiting.unregister(client.sock)
        elif registered is not None and registered.events != events:
            self._waiting.modify(client.sock, events)

    def _part(self, client: Client) -> None:
        self._clients.pop(client.sock.fileno(), None)
        with contextlib.suppress(KeyError):  # one that is waited for nothing isn't registered
            self._waiting.unregister(client.sock)
        client.sock.close()
