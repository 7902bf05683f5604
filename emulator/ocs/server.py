"""Server of an optical switch: clients of all front ends in one thread with one event loop.

A slow, silent or lost client does not delay others.
"""

import socket
from functools import partial
from typing import Final

from moefabric.core.units import NS_PER_S
from moefabric.emulator.crossbar.crossbar import Crossbar
from moefabric.emulator.ocs.client_connection import RECEIVE_BYTES, ClientConnection
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_failures import OcsFailureKind
from moefabric.emulator.ocs.device_spec import DeviceHost, DeviceSpec
from moefabric.emulator.ocs.events import OcsEvent, OcsEventKind
from moefabric.emulator.ocs.front_end import FrontEnd, open_front_end
from moefabric.runtime.connection_limit import FIRST_REQUEST_S, ConnectionLimit
from moefabric.runtime.event_loop import EventLoop
from moefabric.runtime.listener import Listener

MOST_TRUSTED: Final = 32
"""The most clients of a front end that connect from a reserved port, as controllers do."""
MOST_STRANGERS: Final = 48
"""The most other clients of a front end; a further one is refused."""
MOST_OF_SOURCE: Final = 32
"""The most of these from one address."""
RESERVED_PORTS: Final = 1024
"""Ports below this are for privileged processes (ip(7)): no other user's program has one."""
_LEAST_BYTES: Final = 64
"""The least part of a share: an SCPI command or two."""
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds and probes after which a silent client whose machine is gone is disconnected."""


class FrontEndListener:
    """Listening socket of a front end, with its clients."""

    def __init__(
        self, loop: EventLoop, device: OcsDevice, listener: socket.socket, front_end: FrontEnd
    ) -> None:
        self._loop, self._device = loop, device
        self.front_end = front_end
        self._clients: set[ClientConnection] = set()
        self._limit = ConnectionLimit(
            ClientConnection.reset, MOST_STRANGERS, MOST_OF_SOURCE, MOST_TRUSTED, replaces=False
        )
        self.paused = False
        """Whether new clients are disconnected because the switch boots."""
        listener.setblocking(False)
        self._listener = Listener(loop, listener, self._accepted)

    def close(self) -> None:
        """Disconnect all clients and stop listening."""
        for client in list(self._clients):
            client.disconnect()
        self._listener.close()

    def pause(self) -> None:
        """Reset all connections, and accept no new ones."""
        self.paused = True
        for client in list(self._clients):
            client.reset()

    def _accepted(self, sock: socket.socket) -> None:
        """Serve a client, unless the switch boots or others hold all places."""
        try:
            address, port = sock.getpeername()[:2]
            trusted = port < RESERVED_PORTS
            share = (lambda: RECEIVE_BYTES) if trusted else self._stranger_bytes
            client = ClientConnection(sock, self._loop, self._forget, share)
        except OSError:  # the client has disconnected already
            sock.close()
            return
        if self.paused or not self._limit.add(client, address, trusted=trusted):
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._clients.add(client)
        client.accepts_input = lambda: self._survives_reset(client)
        client.start(self.front_end.open_session(client))
        if not trusted:
            deadline_ns = self._loop.now_ns() + round(FIRST_REQUEST_S * NS_PER_S)
            self._loop.call_at(deadline_ns, partial(self._end_silent, client))

    def _stranger_bytes(self) -> int:
        """Return how much is read of a stranger in turn: all of them together have one share."""
        return max(_LEAST_BYTES, RECEIVE_BYTES // len(self._clients))

    def _forget(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        self._limit.remove(client)

    def _end_silent(self, client: ClientConnection) -> None:
        """Disconnect a client that has sent nothing."""
        if not client.has_sent:
            client.reset()

    def _survives_reset(self, client: ClientConnection) -> bool:
        """Apply the failure `reset`; return whether the session gets the received bytes."""
        failure = self._device.failures.strike(OcsFailureKind.RESET)
        if failure is None:
            return True
        if failure.value:
            self._loop.call_at(self._loop.now_ns(), client.reset)
            client.mute()
            return True
        client.reset()
        return False


class OcsServer:
    """An optical switch and its listening sockets."""

    def __init__(
        self,
        crossbar: Crossbar,
        spec: DeviceSpec | None = None,
        host: DeviceHost | None = None,
        loop: EventLoop | None = None,
    ) -> None:
        """Take over a crossbar.

        Raises:
            FabricError: if the mirrors can't be moved.
        """
        self.loop = loop or EventLoop()
        self.device = OcsDevice(crossbar, self.loop, spec, host)
        self._listeners: list[FrontEndListener] = []
        self.device.events.subscribe(self._on_event)

    def open(self, listener: socket.socket, name: str, reference: str = "") -> None:
        """Serve a dialect on a listening socket, which the server owns from now on.

        The other arguments and errors are those of `open_front_end`.
        """
        front_end = open_front_end(name, self.device, reference)
        self._listeners.append(FrontEndListener(self.loop, self.device, listener, front_end))

    def start(self) -> None:
        """Announce that the switch has started; the loop serves it from now on."""
        words = f"{len(self.device.connects)} cross-connects"
        self.device.events.publish(OcsEventKind.STARTED, words=words)

    def close(self) -> None:
        """Disconnect all clients and stop listening. Idempotent."""
        for listener in self._listeners:
            listener.close()

    def _on_event(self, event: OcsEvent) -> None:
        if event.kind is OcsEventKind.REBOOT:
            for listener in self._listeners:
                listener.pause()
            self.loop.call_at(self.loop.now_ns() + self.device.profile.boot_ns, self._finish_boot)

    def _finish_boot(self) -> None:
        for listener in self._listeners:
            listener.paused = False
            listener.front_end.restart()
        self.start()
