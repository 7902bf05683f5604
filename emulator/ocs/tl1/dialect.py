"""TL1 as a dialect of the emulated switch, and its options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from annotated_types import Ge, Le, MaxLen

from moefabric.core.ocs import Spelling, UserAccount
from moefabric.core.ocs_dialect import OcsDialect
from moefabric.emulator.ocs.cross_connects import Refusal

ErrorCode = Annotated[str, Spelling("[A-Z]{4}", "a code of four capital letters")]
CODES: Final = {
    Refusal.NO_SUCH_PORT: "IDNV",
    Refusal.CONFLICT: "SNVS",
    Refusal.NOT_CONNECTED: "SNVS",
    Refusal.MISMATCH: "IIAC",
    Refusal.FAILED: "SROF",
    Refusal.DENIED: "SROF",
    Refusal.HARDWARE: "SROF",
    Refusal.NOT_LOGGED_IN: "PLNA",
    Refusal.NO_SUCH_COMMAND: "ICNV",
}
"""Default error codes. `IDNV` for a port is known; GR-831-CORE offers the others."""


@dataclass(frozen=True)
class Tl1Options:
    """TL1 dialect of the switch."""

    login: bool = True
    """Whether a session has to log in before any command but `ACT-USER`."""
    completes: Literal["settled", "accepted"] = "settled"
    """When a command is reported complete: once its light has settled, or at once."""
    slow_s: Annotated[float, Ge(0)] = 2.0
    """Seconds after which an unfinished command is acknowledged (GR-831-CORE)."""
    slow_ack: Literal["IP", "PF", "OK", "NA"] = "IP"
    """Code of that acknowledgement."""
    outstanding: Annotated[int, Ge(1), Le(256)] = 64
    """Most commands of a session that may be in progress; further ones are answered `RL`."""
    prompt: Annotated[str, MaxLen(16)] = ""
    """Text that is sent after each message."""
    messages: bool = True
    """Whether sessions receive autonomous messages unless they inhibit them."""
    timeout_unit_s: Annotated[int, Ge(1)] = 60
    """Seconds of one unit of `ED-EQPT::TIMEOUT`, which takes 0 (never) to 60."""
    timed_out: Literal["log out", "hang up"] = "log out"
    """What happens to a session that has been idle too long."""
    label_chars: Annotated[int, Ge(1), Le(128)] = 20
    """Longest port label that the switch accepts; a real device is known to refuse 25."""
    codes: Mapping[Refusal, ErrorCode] = field(default_factory=dict)
    """Error codes that differ from the default ones, by reason."""

    def code(self, reason: Refusal) -> str:
        """Return the error code of a refusal."""
        return self.codes.get(reason, CODES[reason])


TL1: Final = OcsDialect(
    port=3082,
    front_end="moefabric.emulator.ocs.tl1.verbs:tl1_front_end",
    options=Tl1Options,
    accounts=(UserAccount("admin", "root"), UserAccount("root", "root")),
)
