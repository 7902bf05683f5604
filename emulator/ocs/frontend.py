"""The seam between an optical switch's door and the languages it speaks: SCPI, TL1, RESTCONF.

A `FrontEnd` speaks one language. For each connection the door (emulator.ocs.server) asks it for a `Session`, hands that whatever bytes come,
and sends what it says through its `Wire`. All of it happens in one thread, so nothing here may block: who has to wait for light
takes a `Turn` and says it later. A front-end does a command only when all of it has come.
"""

from typing import Protocol

from emulator.ocs.store import Store


class Turn(Protocol):
    """A reply's place in the order of replies."""

    def say(self, data: bytes) -> None:
        """Reply with this, once all turns taken before have been said; with nothing, if that is the reply. Once only.

        A client that has gone meanwhile is no fault.
        """


class Wire(Protocol):
    """A client's connection, as its session sees it."""

    @property
    def peer(self) -> str:
        """The client's address, for logs and events: `198.18.0.1:40312`."""

    def turn(self) -> Turn:
        """Take a place in the order of replies, to be said now or later. Until it is said the client is not read beyond a bound."""

    def send(self, data: bytes) -> None:
        """Send now, past all turns: for acknowledgements and autonomous messages.

        A client that doesn't read what it is sent is hung up on once too much waits for it.
        """

    def close(self) -> None:
        """Hang up as soon as all has gone that was sent, and every turn has been said. Nothing more is heard."""


class Session(Protocol):
    """What one client has said so far. Errors, log-ins and half a command belong here; light belongs to the store."""

    def heard(self, data: bytes) -> None:
        """Some bytes have come, cut anywhere. May not raise for anything a client can send."""

    def gone(self) -> None:
        """The connection is no more. Half a command is no command; subscriptions and timers end here."""


class FrontEnd(Protocol):
    """A language that a switch speaks. It may hold what the language keeps for all clients, such as SCPI's error queue."""

    @property
    def name(self) -> str:
        """`scpi`, `tl1`, `restconf`: the name under which its listening socket is handed over."""

    def session(self, wire: Wire) -> Session:
        """A new client's."""

    def restarted(self) -> None:
        """The switch has started, or rebooted: forget what a device forgets then."""


class Language(Protocol):
    """How a front-end is made: its class, or a function."""

    def __call__(self, store: Store) -> FrontEnd:
        """The front-end of a store."""
