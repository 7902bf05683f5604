"""When a process that has ended is started again."""

from dataclasses import dataclass
from typing import Final

_STEADY_S: Final = 60.0
_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 30.0


@dataclass
class Restarts:
    """How often a process has ended lately.

    Attributes:
        ends: Number of ends in a row, each less than a minute after a start.
        not_before_s: When it may start again, on a monotonic clock.
    """

    ends: int = 0
    not_before_s: float = 0.0

    def note_end(self, started_s: float, now_s: float) -> float:
        """Note that the process has ended.

        The first restart is immediate, since traffic relies on the process. Later delays double.

        Returns:
            The delay before the next start, in s.
        """
        self.ends = 1 if now_s - started_s >= _STEADY_S else self.ends + 1
        delay_s = 0.0
        if self.ends > 1:
            delay_s = min(_FIRST_DELAY_S * 2 ** min(self.ends - 2, 16), _LONGEST_DELAY_S)
        self.not_before_s = now_s + delay_s
        return delay_s
