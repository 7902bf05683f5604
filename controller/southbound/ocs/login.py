"""Logins at devices: accounts that they can take, and how rarely a refused one is repeated."""

from dataclasses import dataclass

from moefabric.core.errors import ControlError


class LoginRefusedError(ControlError):
    """The device refuses the account. Frequent attempts may lock it."""


@dataclass(frozen=True)
class RetryDelays:
    """Delays between attempts to reach a device, in s.

    Attributes:
        lost: First and longest delay after any other error.
        refused: First and longest delay after a refused login. Devices lock accounts for minutes
            after 3 to 5 refusals within minutes.
    """

    lost: tuple[float, float] = (0.05, 5.0)
    refused: tuple[float, float] = (300.0, 3600.0)

    def after(self, error: ControlError | None, previous_s: float) -> float:
        """Return the next delay.

        Args:
            error: Why the attempt failed or the session ended.
            previous_s: The delay before it; 0 if the device had been reached.
        """
        first, longest = self.refused if isinstance(error, LoginRefusedError) else self.lost
        return min(max(first, 2 * previous_s), longest)
