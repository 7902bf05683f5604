"""Interface between TL1 sessions and commands."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moefabric.core.ocs import Group
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.front_end import Client, IdleTimeout
from moefabric.emulator.ocs.tl1.dialect import Tl1Options
from moefabric.emulator.ocs.tl1.frames import StandingAlarms
from moefabric.emulator.ocs.tl1.syntax import Command


@dataclass(frozen=True)
class Result:
    """Result of an executed command."""

    lines: Iterable[str] = ()
    remark: str = ""
    settles: bool = False
    """Whether the command completes when all light has settled."""
    quoted: bool = True
    """Whether the lines are sent in quotes."""


class CommandSession:
    """The session that a command runs in.

    Attributes:
        device: the switch.
        options: options of the dialect.
        alarms: alarms of the switch.
        wants_messages: whether the session gets autonomous messages.
        idle: ends the session, if its user's group has a limit.
    """

    idle: IdleTimeout

    def __init__(
        self, device: OcsDevice, options: Tl1Options, alarms: StandingAlarms, client: Client
    ) -> None:
        self.device, self.options, self.alarms, self._client = device, options, alarms, client
        self.wants_messages = options.messages
        self._number = 0

    @property
    def user(self) -> str | None:
        """The user who is logged in; None after an admin has ended the session."""
        return self.device.users.user_of(self._number)

    @property
    def group(self) -> Group:
        """The group of the user."""
        return self.device.users.group(self.user or "")

    def log_in(self, user: str) -> None:
        """Log in as a user, whose group has its idle timeout."""
        self.log_out()
        self._number = self.device.users.log_in(user, "tl1", self._client.peer, self._client.close)
        self.idle.restart()

    def log_out(self) -> None:
        """Log out, which ends the idle timeout."""
        self.device.users.log_out(self._number)
        self.idle.restart()


Execute = Callable[[CommandSession, Command], Result | None]


@dataclass(frozen=True)
class Verb:
    """A command, and the least privileged group that may use it.

    Attributes:
        execute: executes it.
        group: the group.
        needs_login: whether the session has to be logged in.
        aids: the access identifiers that it accepts, in capitals; None: it reads them itself.
    """

    execute: Execute
    group: Group = "view"
    needs_login: bool = True
    aids: tuple[str, ...] | None = None


RANKS: dict[Group, int] = {"view": 0, "user": 1, "admin": 2}
