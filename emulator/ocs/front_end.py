"""Interfaces between the server of an optical switch and the front ends of its dialects.

For each connection the server (module `server`) opens a session of a front end, passes received
bytes to it, and sends the replies. All front ends share one thread, so none may block: a reply that
waits for light reserves its place among the replies and is sent later. A front end executes a
command only when it is complete.
"""

from pkgutil import resolve_name
from typing import Protocol

from moefabric.config.plugins import ocs_dialect
from moefabric.emulator.ocs.device import OcsDevice


class ReplySlot(Protocol):
    """Place in the order of replies; filled once."""

    def fill(self, reply: bytes) -> None:
        """Send this reply, which may be empty, after all earlier replies.

        Replies to disconnected clients are dropped.
        """


class Client(Protocol):
    """A client's connection, as its session uses it."""

    @property
    def peer(self) -> str:
        """The client's address, for logs and events: `198.18.0.1:40312`."""

    def reserve_reply(self) -> ReplySlot:
        """Reserve the next place among the replies.

        The server reads no input from a client with too many unfilled places.
        """

    def send(self, data: bytes) -> None:
        """Send acknowledgements and autonomous messages at once, before pending replies.

        A client that leaves too much unread is disconnected.
        """

    def close(self) -> None:
        """Close after all replies have been sent. Further input is ignored."""


class Session(Protocol):
    """State of one client: errors, log-in, incomplete command. Light is state of the device."""

    def receive(self, data: bytes) -> None:
        """Process bytes, which may end within a command. No input raises an exception."""

    def end(self) -> None:
        """Drop incomplete commands, subscriptions and timers: the connection is closed."""


class FrontEnd(Protocol):
    """A management protocol of a switch, with the state that all its clients share."""

    def open_session(self, client: Client) -> Session:
        """Open the session of a new client."""

    def restart(self) -> None:
        """Reset the state that a reboot of the device resets."""


def open_front_end(dialect: str, device: OcsDevice) -> FrontEnd:
    """Make the front end of a dialect, with the options of the device's profile.

    Raises:
        SpecError: If no dialect is registered under this name.
    """
    registered = ocs_dialect(dialect)
    device.users.add_factory_accounts(registered.accounts)
    options = registered.options(**device.profile.dialects.get(dialect, {}))
    front_end: FrontEnd = resolve_name(registered.front_end)(device, options)
    return front_end
