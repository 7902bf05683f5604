"""Green threads, with events, queues and connections: all that controllers use of Eventlet.

A controller runs on Eventlet's one thread, since Ryu does.
"""

import logging
import socket
import ssl
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from typing import Any, Final, Generic, TypeVar

from moefabric.controller.southbound.openflow import framework  # noqa: F401 - before Eventlet

# isort: split
import eventlet
from eventlet.green import socket as green_socket
from eventlet.green.ssl import GreenSSLSocket
from eventlet.hubs import epolls, hub, trampoline, use_hub
from eventlet.queue import LightQueue
from eventlet.semaphore import Semaphore

from moefabric.controller.http_client import Dial
from moefabric.core.errors import ControlError
from moefabric.runtime.counted_warnings import CountedWarnings
from moefabric.runtime.listener import raise_descriptor_limit

T = TypeVar("T")
Serve = Callable[[socket.socket, tuple[str, int]], object]
"""Function that serves a connection from a peer's address."""

log = logging.getLogger(__name__)

_ACCEPT_RETRY_S: Final = 0.02, 1.0
"""First and longest delay before the next connection is accepted after one couldn't be."""
_TLS_HANDSHAKE_S: Final = 10.0
_LISTEN_BACKLOG: Final = 512

sleep: Final[Callable[[float], object]] = eventlet.sleep
"""Lets other green threads run for a number of seconds."""
lock: Final[Callable[[], AbstractContextManager[Any]]] = Semaphore
"""Returns a lock between green threads."""
create_connection: Final[Dial] = green_socket.create_connection
"""Opens a TCP connection that blocks its green thread only."""


def spawn(function: Callable[..., object], *arguments: object) -> None:
    """Call a function in a green thread that has the caller's context."""
    eventlet.spawn(copy_context().run, function, *arguments)


class _Hub(epolls.Hub):
    """A hub that keeps descriptors registered with epoll while nobody waits for them.

    A connection is read again and again. The hub forgets it when it is closed, or ready with nobody
    waiting.
    """

    is_available = staticmethod(epolls.is_available)

    def __init__(self, clock: Any = None) -> None:
        super().__init__(clock)
        self._idle = set[int]()
        """Descriptors that are registered to be read, but have no listener."""

    def add(self, evtype: str, fileno: int, *calls: Any) -> Any:
        """Call back when a descriptor is ready."""
        if fileno not in self._idle:
            return super().add(evtype, fileno, *calls)
        self._idle.discard(fileno)
        listener = hub.BaseHub.add(self, evtype, fileno, *calls)
        if evtype != self.READ:
            self.register(fileno)
        return listener

    def remove(self, listener: Any) -> None:
        """Call a listener no more."""
        if listener.spent:
            return  # its descriptor was closed, and the number may be that of another connection
        hub.BaseHub.remove(self, listener)
        fileno, others = listener.fileno, (self.listeners[kind] for kind in (self.READ, self.WRITE))
        if listener.evtype != self.READ or any(fileno in listeners for listeners in others):
            self.register(fileno)
        else:
            self._idle.add(fileno)

    def do_poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for descriptors, and deregister those that nobody waits for."""
        ready: list[tuple[int, int]] = super().do_poll(seconds)
        for fileno, _ in ready:
            if fileno in self._idle:
                self._idle.discard(fileno)
                self.register(fileno)
        return ready

    def _obsolete(self, fileno: int) -> None:
        """Forget a descriptor whose number is that of a new connection, or of TLS on an old one."""
        super()._obsolete(fileno)
        if fileno in self._idle:
            self._idle.discard(fileno)
            self.register(fileno)


def start_hub() -> None:
    """Give this process its own Eventlet hub; an inherited one shares the parent's epoll.

    The process may then open as many files as the system permits.
    """
    use_hub(_Hub)
    raise_descriptor_limit()


def start(function: Callable[[], T], *, now: bool = False) -> Callable[[], T]:
    """Call a function in a green thread, as `reconfiguration.Background` does.

    Its log lines have the ids of the caller's.
    """
    outcome, context = eventlet.Event(), copy_context()

    def run() -> None:
        try:
            outcome.send(context.run(function))
        except BaseException as error:  # noqa: BLE001 - the waiting thread gets it
            outcome.send_exception(error)

    spawn(run)
    if now:
        sleep(0)

    result: Callable[[], T] = outcome.wait
    return result


@contextmanager
def after(seconds: float, function: Callable[[], object]) -> Iterator[None]:
    """Call a function in a green thread after a time, unless the block ends earlier."""
    timer = eventlet.spawn_after(seconds, function)
    try:
        yield
    finally:
        timer.cancel()


def wait_readable(descriptor: int) -> None:
    """Wait until a file descriptor can be read."""
    trampoline(descriptor, read=True)


def receive(connection: socket.socket, most_bytes: int) -> bytes:
    """Wait for bytes, however long, and return them; none if the connection has ended."""
    pending = getattr(connection, "pending", None)
    if pending is None or not pending():  # TLS may have decoded more than was taken
        wait_readable(connection.fileno())
    return connection.recv(most_bytes)


def wrap_tls(context: ssl.SSLContext, connection: socket.socket) -> socket.socket:
    """Return a connection after the client's part of a TLS handshake.

    Raises:
        OSError: If the handshake fails.
    """
    secured: socket.socket = GreenSSLSocket(connection, _context=context)
    return secured


class GreenEvent:
    """An event that happens once and that green threads wait for."""

    def __init__(self) -> None:
        self._event = eventlet.Event()

    def set(self) -> None:
        """Wake all green threads that wait; a second call does nothing."""
        if not self._event.ready():
            self._event.send()

    def wait(self, seconds: float) -> bool:
        """Wait for the event, for at most `seconds`; return whether it has happened."""
        if not self._event.ready():  # a timeout costs more than all else here
            with eventlet.Timeout(seconds, False):
                self._event.wait()
        return bool(self._event.ready())


class GreenQueue(Generic[T]):
    """A queue between green threads."""

    def __init__(self) -> None:
        self._queue: Any = LightQueue()
        self.put: Callable[[T], None] = self._queue.put

    def take_all(self) -> list[T]:
        """Wait for an item, let ready threads append more, and return all."""
        items = [self._queue.get()]
        sleep(0)
        return items + [self._queue.get() for _ in range(self._queue.qsize())]


def serve_connections(
    address: tuple[str, int],
    purpose: str,
    serve: Serve,
    tls: ssl.SSLContext | None = None,
    hosts: Collection[str] | None = None,
) -> tuple[str, int]:
    """Call `serve` for each connection to an address from now on, in a green thread of its own.

    Args:
        purpose: What the connections are for, in errors.
        serve: Serves one connection.
        tls: Context of TLS on the connections; None for plain TCP.
        hosts: Addresses that peers may have; connections from others are closed at once, and
            counted in the log. None for any.

    Returns:
        The address at which it listens.

    Raises:
        ControlError: if the address is in use.
    """
    try:
        # With SO_REUSEPORT, a leftover controller would get some of the connections.
        listener = eventlet.listen(address, backlog=_LISTEN_BACKLOG, reuse_port=False)
    except OSError as error:
        place = f"{address[0]}:{address[1]}"
        raise ControlError(f"{place}: can't listen for {purpose}: {error.strerror}") from error
    strangers = CountedWarnings(log)

    def accept() -> None:
        retry_s = _ACCEPT_RETRY_S[0]
        while True:
            try:
                connection, peer = listener.accept()
            except OSError as error:
                log.warning("no connection for %s accepted: %s", purpose, error.strerror)
                sleep(retry_s)  # no event announces free memory or descriptors
                retry_s = min(2 * retry_s, _ACCEPT_RETRY_S[1])
            else:
                retry_s = _ACCEPT_RETRY_S[0]
                if hosts is None or peer[0] in hosts:
                    spawn(_serve_one, serve, tls, connection, peer)
                else:
                    connection.close()
                    strangers.warn("%s: refused: no host of this fabric for %s", peer[0], purpose)
                sleep(0)  # a flood of connections must not delay what is under way

    spawn(accept)
    bound: tuple[str, int] = listener.getsockname()
    return bound


def _serve_one(
    serve: Serve, tls: ssl.SSLContext | None, connection: socket.socket, peer: tuple[str, int]
) -> None:
    """Serve a connection after the server's part of a TLS handshake, if any, and close it."""
    try:
        if tls is not None:
            connection.settimeout(_TLS_HANDSHAKE_S)
            connection = GreenSSLSocket(connection, server_side=True, _context=tls)
            connection.settimeout(None)
    except OSError as error:  # ssl.SSLError and TimeoutError, too
        log.warning("%s:%d: no TLS: %s", *peer[:2], error)
        connection.close()
        return
    with connection, suppress(ConnectionError, TimeoutError):  # the peer hung up
        serve(connection, peer)
