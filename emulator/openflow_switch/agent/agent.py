"""The OpenFlow agent: one process that connects many switches with their controllers.

One thread waits for all sockets, so that a slow, silent or lost controller does not delay others. A
switch whose controller is lost keeps its flows (fail-secure mode, OpenFlow 1.3.5, 6.3.2) and
retries the connection periodically. Besides the connection to its controller, a switch may have
passive connections from tools that connect to its management socket.
"""

import errno
import logging
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.openflow_switch.agent.interfaces import Interfaces
from moefabric.emulator.openflow_switch.agent.session import NEVER, ControllerSession
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.runtime.listener import SpareDescriptors

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 16  # larger buffers would be mapped and unmapped for each read
MIN_RETRY_NS: Final = 50_000_000
MAX_RETRY_NS: Final = 1_000_000_000
EXPIRY_INTERVAL_NS: Final = 500_000_000
"""Interval between checks of flow timeouts, and so the longest delay of a removal."""
MAX_PASSIVE_CONNECTIONS: Final = 16
_MOST_POSTPONED: Final = 16
"""Turns of the loop for which packets wait for controllers' messages, so that they go together."""
Address = tuple[str, int]


@dataclass(eq=False)
class OpenFlowConnection:
    """A session and its non-blocking socket.

    Unread output is kept. While it is, no more input is read from the peer.

    Attributes:
        sock: The socket, which the connection closes.
        selector: Waits for the socket.
        ready: Called when the socket can be read or written.
        is_open: Whether the peer has accepted the connection.
    """

    sock: socket.socket
    session: ControllerSession
    selector: selectors.BaseSelector
    ready: Callable[["OpenFlowConnection"], None]
    is_open: bool = False
    _events: int = 0
    _awaits_input: bool = False

    def receive(self, now_ns: int) -> str | None:
        """Read and process input; return why the connection has ended, if it has."""
        self._awaits_input = False
        try:
            received = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as fault:
            return fault.strerror or str(fault)
        if not received:
            return "hung up"
        self.session.receive(received, now_ns)
        return None

    def update(self, now_ns: int) -> str | None:
        """Send output and select the next events; return why the connection has ended, if so."""
        try:
            self.session.transmit(self.sock.send, now_ns)
            self.is_open = True  # for each session begins with a hello
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except ssl.SSLWantReadError:  # TLS waits for the peer's part of the handshake
            self._awaits_input = True
        except OSError as fault:
            return fault.strerror or str(fault)
        if self.session.is_over:
            return "the session is over"
        reads = self.session.wants_input or self._awaits_input
        writes = bool(self.session.unsent_bytes) and not self._awaits_input
        events = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * writes
        if events != self._events:
            select = self.selector.modify if self._events else self.selector.register
            select(self.sock, events, partial(self.ready, self))
            self._events = events
        return None

    def close(self) -> None:
        """End the session and close the socket; unsent output is lost."""
        if self._events:
            self.selector.unregister(self.sock)
        self._events = 0
        self.session.close()
        self.sock.close()


def connecting_socket(controller: Address, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a socket that is connecting to a controller.

    Reading and writing drive the TLS handshake, if any.

    Raises:
        OSError: If the connection fails at once.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls:
        sock = tls.wrap_socket(sock, do_handshake_on_connect=False)
    status = sock.connect_ex(controller)
    if status not in {0, errno.EINPROGRESS}:
        sock.close()
        raise OSError(status, os.strerror(status))
    return sock


def management_listener(path: Path) -> socket.socket:
    """Listen on a Unix socket for OpenFlow tools of this user and root.

    The new socket replaces a socket that an earlier process left.

    Raises:
        FabricError: If the socket can't be created.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        os.fchmod(sock.fileno(), 0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_socket():
            path.unlink()
        sock.bind(str(path))
        sock.listen()
    except OSError as fault:
        sock.close()
        reason = fault.strerror or fault
        raise FabricError(f"{path}: no socket for OpenFlow tools: {reason}") from fault
    return sock


@cache
def _spare_descriptor() -> SpareDescriptors:
    """Return the descriptor by which this process refuses connections when it has no others."""
    return SpareDescriptors()


@dataclass(eq=False)
class SwitchConnections:
    """A switch and its connections: one to its controller, and passive ones from tools.

    Attributes:
        name: Name of the switch.
        selector: Waits for the sockets.
        tls: For connections to the controller; None for plain TCP.
        controller: Address of the controller.
        connect_ns: When to connect, unless there is a connection.
        retry_ns: How long to wait after the next failure.
        active: The connection to the controller, which may not be open yet.
        passive: Connections of management tools.
        expiry_ns: When to check the timeouts of flow entries next.
        due_ns: When to call `tick` next.
        scheduled_ns: When the agent looks at `due_ns`, which may be later by then.
        schedule: Called if `due_ns` is before `scheduled_ns`.
    """

    name: str
    switch: OpenFlowSwitch
    selector: selectors.BaseSelector
    tls: ssl.SSLContext | None
    schedule: Callable[["SwitchConnections"], None]
    controller: Address | None = None
    connect_ns: int = NEVER
    retry_ns: int = MIN_RETRY_NS
    active: OpenFlowConnection | None = None
    passive: list[OpenFlowConnection] = field(default_factory=list)
    expiry_ns: int = NEVER
    due_ns: int = NEVER
    scheduled_ns: int = NEVER

    @property
    def is_connected(self) -> bool:
        """True if the switch is connected with its controller."""
        return self.active is not None and self.active.is_open

    @property
    def connections(self) -> list[OpenFlowConnection]:
        """All connections, the controller's first."""
        return [self.active, *self.passive] if self.active else [*self.passive]

    def tick(self, now_ns: int) -> None:
        """Run the due timers: flow timeouts, sessions and reconnection."""
        if self.expiry_ns <= now_ns:
            self._expire(now_ns)
        for connection in self.connections:
            connection.session.tick(now_ns)
        if self.controller and not self.active and self.connect_ns <= now_ns:
            self._connect(self.controller)
        self.update()

    def _expire(self, now_ns: int) -> None:
        self.expiry_ns = NEVER  # until `update`
        try:
            self.switch.expire(now_ns)
        except FabricError as fault:
            detail = {"switch": self.name, "why": str(fault)}
            log.error("flow expiry postponed", extra=detail)  # noqa: TRY400 - the fault suffices

    def update(self) -> None:
        """Send output, and select the events and times to wait for."""
        now_ns = time.monotonic_ns()
        for connection in self.connections:
            if reason := connection.update(now_ns):
                self._end(connection, reason)
        if not self.switch.has_timeouts:
            self.expiry_ns = NEVER
        elif self.expiry_ns == NEVER:
            self.expiry_ns = now_ns + EXPIRY_INTERVAL_NS
        connect_ns = NEVER if self.active else self.connect_ns
        sessions = (connection.session.due_ns for connection in self.connections)
        self.due_ns = min(connect_ns, self.expiry_ns, *sessions)
        if self.due_ns < self.scheduled_ns:
            self.schedule(self)

    def _connection(self, sock: socket.socket, *, passive: bool) -> OpenFlowConnection:
        session = ControllerSession(self.switch, time.monotonic_ns(), passive=passive)
        return OpenFlowConnection(sock, session, self.selector, self._receive)

    def _receive(self, connection: OpenFlowConnection) -> None:
        if reason := connection.receive(time.monotonic_ns()):
            self._end(connection, reason)
        elif connection is self.active and connection.is_open:
            self.retry_ns = MIN_RETRY_NS
        self.update()

    def _end(self, connection: OpenFlowConnection, reason: str) -> None:
        if connection is self.active:
            self._fail(reason)
            return
        with suppress(ValueError):
            self.passive.remove(connection)
        connection.close()

    # --- the controller ---------------------------------------------------------------------------

    def connect(self, controller: Address) -> None:
        """Connect with a controller, instead of an earlier one."""
        self.controller, self.retry_ns = controller, MIN_RETRY_NS
        self._disconnect(retry_in_ns=0)
        self.update()

    def _connect(self, controller: Address) -> None:
        try:
            sock = connecting_socket(controller, self.tls)
        except OSError as fault:
            self._fail(fault.strerror or str(fault))
        else:
            self.active = self._connection(sock, passive=False)

    def _fail(self, reason: str) -> None:
        log.info("not connected", extra={"switch": self.name, "why": reason})
        self._disconnect(self.retry_ns)
        self.retry_ns = min(2 * self.retry_ns, MAX_RETRY_NS)

    def _disconnect(self, retry_in_ns: int) -> None:
        if self.active:
            self.active.close()
        self.active, self.connect_ns = None, time.monotonic_ns() + retry_in_ns

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            connection.close()

    # --- tools and packets ------------------------------------------------------------------------

    def accept(self, listener: socket.socket) -> None:
        """Accept a tool, which has a controller's rights but gets no unrequested messages."""
        if (sock := _spare_descriptor().accept(listener)) is None:
            return
        if len(self.passive) >= MAX_PASSIVE_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        self.passive.append(self._connection(sock, passive=True))
        self.update()

    def read_packets(self) -> None:
        """Send packets to the controller; without a controller they are lost."""
        self.switch.publish_packets(self.switch.datapath.received())
        self.update()


class OpenFlowAgent:
    """Serves switches until it is stopped.

    Attributes:
        switches: The switches with their connections, by name.
    """

    def __init__(self, interfaces: Interfaces) -> None:
        """Create an agent; `interfaces` reports the carrier of all switches' ports."""
        self.interfaces = interfaces
        self._selector, self._stopped = selectors.DefaultSelector(), False
        self.switches = dict[str, SwitchConnections]()
        self._ports = dict[str, tuple[SwitchConnections, int]]()
        self._listeners = list[socket.socket]()
        self._packet_descriptors, self._postponed = set[int](), 0
        self._timers, self._timer_numbers = list[tuple[int, int, SwitchConnections]](), count()
        self.watch(interfaces.fileno(), self._read_carrier)

    def add(
        self,
        name: str,
        switch: OpenFlowSwitch,
        management: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Add a switch without a controller.

        Args:
            name: Name of the switch.
            management: Path of a Unix socket on which tools may speak OpenFlow with it.
            tls: For connections to controllers; None for plain TCP.

        Raises:
            FabricError: If the socket can't be created. The switch isn't added then.
        """
        connections = SwitchConnections(name, switch, self._selector, tls, self._schedule)
        if management:
            listener = management_listener(management)
            self._listeners.append(listener)
            self.watch(listener.fileno(), partial(connections.accept, listener))
        self.switches[name] = connections
        for port in switch.ports.values():
            self._ports[port.name] = (connections, port.number)
        self._packet_descriptors.add(switch.datapath.fileno())
        self.watch(switch.datapath.fileno(), connections.read_packets)

    def connect(self, controllers: Mapping[str, Address]) -> None:
        """Connect switches, by name, with controllers, and close their earlier connections.

        Raises:
            KeyError: If a switch doesn't exist. No switch is connected then.
        """
        selected = [(self.switches[name], address) for name, address in controllers.items()]
        for connections, address in selected:
            connections.connect(address)

    def watch(self, descriptor: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, ready)

    def stop(self) -> None:
        """Make `serve` return after the current work."""
        self._stopped = True

    def serve(self) -> None:
        """Serve until `stop` is called."""
        while not self._stopped:
            self.run_once(None)

    def run_once(self, timeout_s: float | None) -> None:
        """Wait once, at most `timeout_s`, then process ready sockets and due timers."""
        waits_s = [] if timeout_s is None else [timeout_s]
        if self._timers:
            waits_s.append(max(0, self._timers[0][0] - time.monotonic_ns()) / 1e9)
        ready = self._selector.select(min(waits_s, default=None))
        # Silence is judged by the time of the wake-up, so that slow processing doesn't count as it.
        now_ns = time.monotonic_ns()
        for key in self._due([key for key, _ in ready]):
            key.data()
        while self._timers and self._timers[0][0] <= now_ns:
            scheduled_ns, _, connections = heappop(self._timers)
            if scheduled_ns == connections.scheduled_ns:  # or an earlier timer has replaced it
                connections.scheduled_ns = NEVER
                if connections.due_ns <= now_ns:
                    connections.tick(now_ns)
                elif connections.due_ns < NEVER:
                    self._schedule(connections)

    def _schedule(self, connections: SwitchConnections) -> None:
        """Look at a switch's timers when they are due."""
        connections.scheduled_ns = connections.due_ns
        heappush(self._timers, (connections.due_ns, next(self._timer_numbers), connections))

    def _due(self, ready: list[selectors.SelectorKey]) -> list[selectors.SelectorKey]:
        """Return the keys to process now: messages first, since they make more packets arrive."""
        messages = [key for key in ready if key.fd not in self._packet_descriptors]
        if messages and self._postponed < _MOST_POSTPONED:
            self._postponed += len(messages) < len(ready)
            return messages
        self._postponed = 0
        return ready

    def _read_carrier(self) -> None:
        for name, up in self.interfaces.changed().items():
            connections, number = self._ports.get(name, (None, 0))
            if connections and (port := connections.switch.port_changed(number, up=up)):
                for listener in connections.switch.listeners:
                    listener.send_port_status(port)
                connections.update()

    def close(self) -> None:
        """Close all connections and listeners. The datapaths continue to forward."""
        for connections in self.switches.values():
            connections.close()
        for listener in self._listeners:
            path = Path(listener.getsockname())
            listener.close()
            path.unlink(missing_ok=True)
        self._listeners.clear()
        self._selector.close()
