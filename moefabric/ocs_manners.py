"""Manners: how a switch of one kind speaks TL1 and RESTCONF where no public source tells, as settings with a default.

Where a default is more than a guess, its docstring names what it follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Group = Literal["admin", "user", "view"]
"""What a user may do: everything; everything but change the system and its users; only read (YANG polatis-switch, `group`)."""


@dataclass(frozen=True)
class Account:
    """Somebody who may log in. A password may be empty."""

    name: str
    password: str = ""
    group: Group = "admin"


ACCOUNTS = (Account("admin", "root"), Account("root", "root"))
"""Those that public drivers log in with."""

CODES = {
    "no such port": "IDNV",
    "conflict": "SNVS",
    "not connected": "SNVS",
    "mismatch": "IIAC",
    "failed": "SROF",
    "denied": "SROF",
    "hardware": "SROF",
    "not logged in": "PLNA",
    "no such command": "ICNV",
}
"""TL1 error codes by kind of refusal. `IDNV` for a port is known; the others are what GR-831-CORE offers for such a case."""


@dataclass(frozen=True)
class Tl1Manners:
    """How a switch speaks TL1."""

    login: bool = True
    """Whether anything but `ACT-USER` needs a log-in first."""
    completes: Literal["settled", "accepted"] = "settled"
    """When `COMPLD` is said: when the light of the command has settled, or at once."""
    slow_s: float = 2.0
    """A command that isn't completed by then is acknowledged first, as GR-831-CORE has it."""
    slow_ack: Literal["IP", "PF", "OK", "NA"] = "IP"
    outstanding: int = 64
    """So many commands of a session may wait for their light; more are told to repeat later (`RL`)."""
    prompt: str = ""
    """Sent after each `;` that ends a message."""
    messages: bool = True
    """Whether a session that has logged in is sent autonomous messages until it says that it wants none."""
    timeout_unit_s: int = 60
    """What `ED-EQPT::TIMEOUT` counts in; it takes 0..60, and 0 is for ever."""
    timed_out: Literal["log out", "hang up"] = "log out"
    """What becomes of a session that was silent too long."""
    label_chars: int = 20
    """The longest port label that `ED-PORT-LABEL` takes; 25 are known to be too many."""
    codes: Mapping[str, str] = field(default_factory=lambda: dict(CODES), hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", {**CODES, **self.codes})


@dataclass(frozen=True)
class RestconfManners:
    """How a switch speaks RESTCONF."""

    root: str = "/api"
    revision: str = "2018-03-22"
    """Of the YANG module optical-switch: cross-connects are a list of `pairs` before 2017-08-04 and of `pair` since. Both names are
    understood; this one is said where the client has named none."""
    completes: Literal["settled", "accepted"] = "settled"
    """When a change of cross-connects or ports is answered: when its light has settled, or at once."""
    post_kept_s: float | None = None
    """How long what is made by POST is kept. Users report about 5 s, others that it stays: None, for ever."""
    idle_s: float = 60.0
    """A connection that is silent so long between two requests is closed."""
    whole_lists: bool = True
    """Whether a list without a key may be the target of PATCH and DELETE, as public clients of Polatis switches have it."""
