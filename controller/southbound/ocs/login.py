"""Logins at devices: accounts that they can take, and how rarely a refused one is repeated."""

import re
from dataclasses import dataclass
from typing import Final

from moefabric.core.errors import ControlError

_UNSAFE: Final = re.compile(r"[^!-~]|[;:,&\"<>]")
"""Characters that TL1 can't carry in a parameter, or that would end it."""


class LoginRefusedError(ControlError):
    """The device refuses the account. Frequent attempts may lock it."""


def check_tl1_account(account: tuple[str, str]) -> tuple[str, str]:
    """Return an account, user and password.

    Raises:
        ControlError: If it has characters that TL1 can't carry.
    """
    if any(map(_UNSAFE.search, account)):
        raise ControlError(
            "TL1 login: user and password are printable ASCII without ; : , & < > and quotes; "
            "set another password on the device"
        )
    return account


@dataclass(frozen=True)
class RetryDelays:
    """Delays between attempts to reach a device, in s.

    Attributes:
        lost: First and longest delay after any other fault.
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
