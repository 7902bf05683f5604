"""What SCPI keeps of what went wrong and what is done (IEEE 488.2, 11)."""

from dataclasses import dataclass, field

from emulator.ocs.scpi_words import ScpiError

ERRORS_KEPT = 32
POWER_ON, OPERATION_COMPLETE = 128, 1
"""Bits of the standard event status register (IEEE 488.2, 11.5.1)."""


@dataclass
class Status:
    """What SCPI keeps of what went wrong: the error queue and the registers of IEEE 488.2."""

    errors: list[ScpiError] = field(default_factory=list)
    events: int = POWER_ON
    event_mask: int = 0
    service_mask: int = 0

    def add(self, error: ScpiError) -> None:
        """Queue an error; a full queue ends in `queue overflow` and forgets what comes after."""
        self.events |= error.event_bit
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append(error)
        else:
            self.errors[-1] = ScpiError(-350)

    def clear(self) -> None:
        """`*cls`."""
        self.errors.clear()
        self.events = 0

    def restart(self) -> None:
        """As after power-on."""
        self.errors.clear()
        self.events, self.event_mask, self.service_mask = POWER_ON, 0, 0

    @property
    def byte(self) -> int:
        """The status byte: bit 2 the error queue, bit 5 an event that is asked for, bit 6 the sum of what is asked for."""
        summed = 4 * bool(self.errors) + 32 * bool(self.events & self.event_mask)
        return summed + 64 * bool(summed & self.service_mask)
