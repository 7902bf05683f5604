"""Errors and status registers of SCPI (SCPI-99 volume 2, chapter 21; IEEE 488.2, section 11)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

QUEUE_LENGTH = 32
POWER_ON, OPERATION_COMPLETE = 128, 1
"""Bits of the standard event status register (IEEE 488.2, 11.5.1)."""


class ScpiError(Exception):
    """Refusal of a command, and entry of the error queue: a code of SCPI-99 and details."""

    NAMES: ClassVar[Mapping[int, str]] = {
        -100: "Command error",
        -102: "Syntax error",
        -104: "Data type error",
        -108: "Parameter not allowed",
        -109: "Missing parameter",
        -113: "Undefined header",
        -200: "Execution error",
        -203: "Command protected",
        -221: "Settings conflict",
        -222: "Data out of range",
        -224: "Illegal parameter value",
        -240: "Hardware error",
        -241: "Hardware missing",
        -350: "Queue overflow",
        -363: "Input buffer overrun",
    }

    def __init__(self, code: int, detail: str = "") -> None:
        self.code, self.detail = code, detail
        super().__init__(code, detail)

    @property
    def event_bit(self) -> int:
        """Bit of the standard event status register: command, execution or device error."""
        return {1: 32, 2: 16, 3: 8, 4: 4}[-self.code // 100]

    def __str__(self) -> str:
        detail = "".join(c if " " <= c <= "~" else "?" for c in self.detail.replace('"', "'"))
        return f'{self.code},"{"; ".join(filter(None, (self.NAMES[self.code], detail)))[:255]}"'


@dataclass
class Status:
    """Error queue and status registers (IEEE 488.2)."""

    errors: list[ScpiError] = field(default_factory=list)
    events: int = POWER_ON
    event_mask: int = 0
    service_mask: int = 0

    def add(self, error: ScpiError) -> None:
        """Queue an error; the last entry of a full queue becomes `Queue overflow`."""
        self.events |= error.event_bit
        if len(self.errors) < QUEUE_LENGTH:
            self.errors.append(error)
        else:
            self.errors[-1] = ScpiError(-350)

    def clear(self) -> None:
        """Execute `*CLS`."""
        self.errors.clear()
        self.events = 0

    def restart(self) -> None:
        """Reset to the state after power-on."""
        self.errors.clear()
        self.events, self.event_mask, self.service_mask = POWER_ON, 0, 0

    @property
    def byte(self) -> int:
        """Status byte: bit 2 is the error queue, bit 5 enabled events, bit 6 a service request."""
        summary = 4 * bool(self.errors) + 32 * bool(self.events & self.event_mask)
        return summary + 64 * bool(summary & self.service_mask)
