"""The optical switch's door: clients of all its languages at once, in one thread, with one wait.

A client that is slow, silent or gone holds up nobody else.
"""

import selectors
import socket
from collections.abc import Iterable, Mapping

from emulator.light import Crossbar
from emulator.loop import Loop
from emulator.ocs.build import Build, Outside
from emulator.ocs.events import Event, Kind
from emulator.ocs.faults import Ill
from emulator.ocs.frontend import FrontEnd, Language
from emulator.ocs.store import Store
from emulator.ocs.wire import Connection

CLIENTS = 64
"""Of each language; one more is turned away."""


class Door:
    """One language's listening socket, and its clients."""

    def __init__(self, loop: Loop, store: Store, listener: socket.socket, front_end: FrontEnd) -> None:
        self._loop, self._store, self._listener, self.front_end = loop, store, listener, front_end
        self.clients: set[Connection] = set()
        self.shut = False
        """While the switch boots nobody is let in."""
        listener.setblocking(False)
        loop.watch(listener, selectors.EVENT_READ, self._welcome)

    def close(self) -> None:
        """Hang up on everybody, and listen no more."""
        for client in list(self.clients):
            client.part()
        self._loop.watch(self._listener, 0, self._welcome)
        self._listener.close()

    def hang_up(self) -> None:
        """Break off all connections."""
        for client in list(self.clients):
            client.reset()

    def _welcome(self, _events: int) -> None:
        try:
            sock, _ = self._listener.accept()
            client = Connection(sock, self._loop, self.clients.discard)
        except OSError:  # gone before it was welcomed
            return
        if self.shut or len(self.clients) >= CLIENTS:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.clients.add(client)
        client.before = lambda: self._goes_on(client)
        client.begin(self.front_end.session(client))

    def _goes_on(self, client: Connection) -> bool:
        """Whether what has come is heard; a fault may break the connection off before that, or right after."""
        fault = self._store.faults.having(Ill.RESET)
        if fault is None:
            return True
        self._store.strike(Ill.RESET)
        if fault.value:
            self._loop.at(self._loop.now_ns(), client.reset)
            client.mute()
            return True
        client.reset()
        return False


class Server:
    """An optical switch that is served: its store, its doors, its one thread."""

    def __init__(
        self,
        crossbar: Crossbar,
        build: Build | None = None,
        outside: Outside | None = None,
        loop: Loop | None = None,
    ) -> None:
        """Take the mirrors over. FabricError if they can't be moved."""
        self.loop = loop or Loop()
        self.store = Store(crossbar, self.loop, build, outside)
        self.doors: list[Door] = []
        self.store.subscribe(self._heard)

    def open(self, listener: socket.socket, language: Language) -> None:
        """Let clients in who speak this language. The listening socket is the server's from now on."""
        self.doors.append(Door(self.loop, self.store, listener, language(self.store)))

    def open_all(self, listeners: Mapping[str, socket.socket], languages: Mapping[str, Language]) -> None:
        """Open a door for each listening socket whose language is known; the others are closed."""
        for name, listener in listeners.items():
            if name in languages:
                self.open(listener, languages[name])
            else:
                listener.close()

    def serve(self, *stops: socket.socket) -> None:
        """Answer until one of `stops` has something to read, or is closed at its other end."""
        for stop in stops:
            self.loop.watch(stop, selectors.EVENT_READ, lambda _events: self.loop.stop())
        self.run()

    def run(self) -> None:
        """Answer until the loop is told to stop."""
        try:
            self.store.started()
            self.loop.run()
        finally:
            for door in self.doors:
                door.close()
            self.loop.close()

    def _heard(self, event: Event) -> None:
        if event.kind is Kind.REBOOT:
            self._shut(self.doors)
            self.loop.at(self.loop.now_ns() + self.store.profile.boot_ns, self._booted)

    def _shut(self, doors: Iterable[Door]) -> None:
        for door in doors:
            door.shut = True
            door.hang_up()

    def _booted(self) -> None:
        for door in self.doors:
            door.shut = False
            door.front_end.restarted()
        self.store.started()
