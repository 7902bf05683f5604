"""Emulated optical switch on the loopback interface, for tests of drivers."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moefabric.controller.southbound.ocs.cross_connects import CrossConnect
from moefabric.core.ocs import DeviceProfile
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_failures import OcsFailure
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.server import OcsServer
from moefabric.runtime.event_loop import IN
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.ocs_serving import serve_until


class EmulatedOcs:
    """A switch that a thread serves; its state is only accessed in that thread."""

    def __init__(self, server: OcsServer, address: tuple[str, int]) -> None:
        self.address, self._server = address, server
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wake_up, self._woken_up = socket.socketpair()
        server.loop.watch(self._woken_up.fileno(), IN, self._call_next)

    @property
    def device(self) -> OcsDevice:
        """The state of the switch, for functions that `run` calls."""
        return self._server.device

    def inject(self, *faults: OcsFailure) -> None:
        """Inject faults."""
        for fault in faults:
            self.run(lambda fault=fault: self.device.inject(fault))  # type: ignore[misc]

    def cross_connects(self) -> tuple[CrossConnect, ...]:
        """Return the cross-connects of the device."""
        result: list[tuple[CrossConnect, ...]] = []
        self.run(lambda: result.append(tuple(sorted(self.device.connects))))
        return result[0]

    def run(self, function: Callable[[], object]) -> None:
        """Call a function in the serving thread, and wait for its end."""
        finished = threading.Event()

        def call() -> None:
            function()
            finished.set()

        self._calls.put(call)
        self._wake_up.send(b".")
        assert finished.wait(30)

    def _call_next(self, _events: int) -> None:
        self._woken_up.recv(1)
        self._calls.get()()

    def close(self) -> None:
        """Close the sockets that wake the serving thread."""
        self._wake_up.close()
        self._woken_up.close()


@contextmanager
def ocs_device(
    dialect: str,
    ports: int,
    profile: DeviceProfile,
    *,
    shared: bool = False,
    address: tuple[str, int] = ("127.0.0.1", 0),
) -> Iterator[EmulatedOcs]:
    """Serve a switch that speaks one dialect, until the block ends.

    With `shared`, its thread serves a second switch too, whose cross-connects must stay.
    """
    listener = socket.create_server(address)
    server = OcsServer(MemoryCrossbar(Ports(ports)), DeviceSpec(profile))
    bound_address: tuple[str, int] = listener.getsockname()[:2]
    server.open(listener, dialect)
    pairs = [(port, ports + port) for port in range(1, ports + 1)]
    others = [MemoryCrossbar(Ports(ports))] if shared else []
    neighbours = [OcsServer(other, DeviceSpec(profile), None, server.loop) for other in others]
    for neighbour in neighbours:
        neighbour.open(socket.create_server(("127.0.0.1", 0)), dialect)
        neighbour.start()
        neighbour.device.add(pairs)
    ocs = EmulatedOcs(server, bound_address)
    stop_receiver, stop = socket.socketpair()
    thread = threading.Thread(target=serve_until, args=(server, stop_receiver))
    thread.start()
    try:
        yield ocs
    finally:
        for neighbour in neighbours:
            ocs.run(neighbour.close)
        stop.close()
        thread.join(10)
        stop_receiver.close()
        ocs.close()
    for neighbour in neighbours:
        assert sorted(neighbour.device.connects) == pairs
