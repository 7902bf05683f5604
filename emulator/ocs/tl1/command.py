"""Interface between TL1 sessions and commands."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from moefabric.core.ocs import Group
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.tl1.alarms import StandingAlarms
from moefabric.emulator.ocs.tl1.dialect import Tl1Options
from moefabric.emulator.ocs.tl1.syntax import Command


@dataclass(frozen=True)
class Result:
    """Result of an executed command. `lines` are already quoted where TL1 requires it."""

    lines: tuple[str, ...] = ()
    remark: str = ""
    settles: bool = False
    """Whether the command completes when all light has settled."""


class CommandSession(Protocol):
    """The session that a command runs in."""

    wants_messages: bool
    """Whether the session gets autonomous messages."""

    @property
    def device(self) -> OcsDevice:
        """The switch."""

    @property
    def options(self) -> Tl1Options:
        """Options of the dialect."""

    @property
    def alarms(self) -> StandingAlarms:
        """Alarms of the switch."""

    @property
    def user(self) -> str | None:
        """The user who is logged in."""

    def log_in(self, user: str) -> None:
        """Log in as a user."""

    def log_out(self) -> None:
        """Log out."""


Execute = Callable[[CommandSession, Command], Result]


@dataclass(frozen=True)
class Verb:
    """A command, and the least privileged group that may use it."""

    execute: Execute
    group: Group = "view"
    needs_login: bool = True


RANKS: dict[Group, int] = {"view": 0, "user": 1, "admin": 2}
