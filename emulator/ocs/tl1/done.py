"""The seam between TL1's sessions and its commands: what a command sees of who asks, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from emulator.ocs.store import Store
from emulator.ocs.tl1.alarms import Alarms
from emulator.ocs.tl1.words import Command
from moefabric.ocs_manners import Group


@dataclass(frozen=True)
class Done:
    """A command that has been done. Lines are as they go out, quoted where they have to be."""

    lines: tuple[str, ...] = ()
    remark: str = ""
    settles: bool = False
    """Whether it is complete only when all light has settled."""


class Caller(Protocol):
    """Who asks: a session, as a command sees it."""

    @property
    def store(self) -> Store:
        """The switch."""

    @property
    def alarms(self) -> Alarms:
        """Its alarms."""

    @property
    def user(self) -> str | None:
        """Who is logged in."""

    wants_messages: bool
    """Whether it is sent autonomous messages."""

    def log_in(self, user: str) -> None:
        """Be that user from now on."""

    def log_out(self) -> None:
        """Be nobody."""


Execute = Callable[[Caller, Command], Done]


@dataclass(frozen=True)
class Verb:
    """A command: what it does, and the least that its user has to be."""

    execute: Execute
    least: Group = "view"
    needs_login: bool = True


RANKS: dict[Group, int] = {"view": 0, "user": 1, "admin": 2}
