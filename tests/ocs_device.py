"""The emulator's optical switch on loopback for tests of its drivers: any of its languages, mirrors in memory, faults on demand."""

import queue
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controller.southbound.crossconnects import CrossConnect, Moves
from controller.southbound.driven_ocs import Device
from emulator.light import MemoryCrossbar, Ports
from emulator.ocs.build import Build
from emulator.ocs.faults import Fault
from emulator.ocs.languages import LANGUAGES
from emulator.ocs.server import Server
from emulator.ocs.store import Store
from moefabric.ocs_profile import Profile


class OcsDevice:
    """A served switch. Its store belongs to the thread that serves it, which does what it is told here."""

    def __init__(self, server: Server, address: tuple[str, int]) -> None:
        self.address, self._server = address, server
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        server.loop.watch(self._woken, selectors.EVENT_READ, self._work)

    @property
    def store(self) -> Store:
        """Its state; to be touched by what `do` is given alone."""
        return self._server.store

    def suffer(self, *faults: Fault) -> None:
        """Suffer these faults from now on."""
        for fault in faults:
            self.do(lambda fault=fault: self.store.inject(fault))  # type: ignore[misc]

    def joined(self) -> tuple[CrossConnect, ...]:
        """What is joined, by the store itself."""
        found: list[tuple[CrossConnect, ...]] = []
        self.do(lambda: found.append(tuple(sorted(self.store.connects))))
        return found[0]

    def do(self, what: Callable[[], object]) -> None:
        """Have this done; returns when it is."""
        done = threading.Event()

        def work() -> None:
            what()
            done.set()

        self._todo.put(work)
        self._wake.send(b".")
        assert done.wait(5)

    def _work(self, _events: int) -> None:
        self._woken.recv(1)
        self._todo.get()()

    def close(self) -> None:
        """Nothing more is told."""
        self._wake.close()
        self._woken.close()


@contextmanager
def ocs_device(
    language: str, ports: int, profile: Profile, address: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[OcsDevice]:
    """A switch of so many ports that speaks this language at an address, until the block ends."""
    listener = socket.create_server(address)
    server = Server(MemoryCrossbar(Ports(ports, ports)), Build(profile))
    where: tuple[str, int] = listener.getsockname()[:2]
    server.open(listener, LANGUAGES[language])
    made = OcsDevice(server, where)
    hear, say = socket.socketpair()
    serving = threading.Thread(target=server.serve, args=(hear,))
    serving.start()
    try:
        yield made
    finally:
        say.close()
        serving.join(10)
        hear.close()
        made.close()


class Meddled:
    """A driver's device that suffers faults just when it is told to move, so that questions before are answered."""

    def __init__(self, device: Device, meddle: Callable[[], None]) -> None:
        self.name, self._device, self._meddle = device.name, device, meddle

    def joined(self) -> tuple[CrossConnect, ...]:
        return self._device.joined()

    def move(self, moves: Moves) -> str | None:
        self._meddle()
        return self._device.move(moves)

    def settled(self, deadline_s: float) -> None:
        self._device.settled(deadline_s)

    def close(self) -> None:
        self._device.close()
