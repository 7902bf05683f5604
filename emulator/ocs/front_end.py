"""Interfaces between the server of an optical switch and its front ends, and what these share.

For each connection the server (module `server`) opens a session of a front end, passes received
bytes to it, and sends the replies. All front ends share one thread, so none may block: a reply that
waits for light reserves its place among the replies and is sent later. A front end executes a
command only when it is complete.
"""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Protocol

from moefabric.config.plugins import ocs_dialect
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.runtime.event_loop import Timer, Timers


class ReplySlot:
    """Place in the order of replies; filled once."""

    def __init__(self, on_filled: Callable[[], None]) -> None:
        self._on_filled = on_filled
        self.reply: bytes | None = None

    def fill(self, reply: bytes) -> None:
        """Send this reply, which may be empty, after all earlier ones; later calls are ignored.

        Replies to disconnected clients are dropped.
        """
        if self.reply is None:
            self.reply = reply
            self._on_filled()


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


class IdleTimeout:
    """Calls a function once a session has been idle for too long."""

    def __init__(
        self,
        timers: Timers,
        limit_ns: Callable[[], int],
        is_busy: Callable[[], bool],
        expire: Callable[[], None],
    ) -> None:
        """Start without a timer.

        Args:
            limit_ns: returns the limit; 0: none.
            is_busy: returns whether a command is in progress, which counts as activity.
        """
        self._timers, self._limit_ns, self._is_busy = timers, limit_ns, is_busy
        self._expire = expire
        self._timer = Timer(self._check)
        self.active()

    def active(self) -> None:
        """Record that the session is active now."""
        self._active_ns = self._timers.now_ns()

    def restart(self) -> None:
        """Start, move or stop the timer by the limit that holds now."""
        self.stop()
        if limit_ns := self._limit_ns():
            due_ns = max(self._active_ns + limit_ns, self._timers.now_ns())
            self._timer = self._timers.call_at(due_ns, self._check)

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _check(self) -> None:
        if self._is_busy():
            self.active()
        if self._timers.now_ns() < self._active_ns + self._limit_ns():
            self.restart()
        else:
            self._expire()


def open_front_end(name: str, device: OcsDevice, reference: str = "") -> FrontEnd:
    """Make the front end of a dialect, with the options of the device's profile.

    Args:
        reference: `package.module:Name` of the dialect, if that is known without the registry.

    Raises:
        SpecError: If there is no such dialect.
    """
    dialect = ocs_dialect(reference or name)
    device.users.add_factory_accounts(dialect.accounts)
    options = dialect.options(**device.profile.dialects.get(name, {}))
    front_end: FrontEnd = resolve_name(dialect.front_end)(device, options)
    return front_end
