"""Work on failures that takes as long in model time as it takes in wall time.

Packets are under way meanwhile, so the work itself has to come later in a dilated run.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

_SAMPLES: Final = 8


class DilatedWork:
    """One kind of work, put off so that it ends when that of the modelled cluster would.

    Work of c wall seconds is to end c x dilation after its cause. The wait comes before the work,
    whose duration isn't known by then: it is expected to be the median of the last ones. The
    difference of both is all that a run at dilation d wins or loses, times 1 - 1/d in model time.

    Args:
        dilation: Factor by which the run's times are stretched.
        first_s: Expected seconds of the first work.
        sleep: Waits for so many seconds.
        clock_s: Seconds of a monotonic clock.
    """

    def __init__(
        self,
        dilation: float,
        first_s: float,
        sleep: Callable[[float], object],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dilation, self._first_s = dilation, first_s
        self._sleep, self._clock_s = sleep, clock_s
        self._took_s = deque[float](maxlen=_SAMPLES)

    @property
    def expected_s(self) -> float:
        """The expected seconds of the next work."""
        return median(self._took_s) if self._took_s else self._first_s

    @contextmanager
    def delayed(self, since_s: float = 0.0, settle_s: float = 0.0) -> Iterator[None]:
        """Wait before the work inside the `with`, and time it.

        Args:
            since_s: Seconds since the cause of the work.
            settle_s: Seconds of settling in the work, which are dilated already.
        """
        if self._dilation > 1:
            self._sleep((self._dilation - 1) * (since_s + self.expected_s))
        started_s = self._clock_s()
        yield
        took_s = self._clock_s() - started_s
        self._took_s.append(took_s - settle_s if took_s > settle_s else took_s)
