"""Detection of controllers that hang.

A controller reports that it works: it asks its own northbound interface for `/health` and then
beats. What keeps it from beating counts, unless it is that other processes have the processors: the
time for which the kernel lets a runnable process wait (field 2 of /proc/PID/schedstat) is left out,
so that a controller on a busy machine isn't taken for one that hangs. One that is stopped by a
signal does count, and one that a debugger traces doesn't.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moefabric.core.units import NS_PER_S

BEAT_S: Final = 1.0
"""Interval of beats."""
HUNG_S: Final = 60.0
"""Time without a beat, besides that of waiting for a processor, after which a controller hangs.
Planning keeps a controller from beating for 55 s at most: a policy of others has 15 s to load, and
20 s for its circuits and for its split."""


@dataclass
class Heartbeat:
    """The last sign of life of a process.

    Attributes:
        pid: The process.
        at_s: When it beat, on a monotonic clock.
        waited_s: How long it had waited for a processor by then.
    """

    pid: int
    at_s: float
    waited_s: float = 0.0

    def beat(self, now_s: float) -> None:
        """Begin to count the time without a beat."""
        self.at_s, self.waited_s = now_s, processor_wait_s(self.pid)

    def is_hung(self, now_s: float) -> bool:
        """Return whether the process hangs, and isn't just slow."""
        if now_s - self.at_s < HUNG_S:
            return False
        if is_traced(self.pid):
            self.beat(now_s)
            return False
        return now_s - self.at_s - (processor_wait_s(self.pid) - self.waited_s) >= HUNG_S


def processor_wait_s(pid: int) -> float:
    """Return how long a process has been runnable without a processor; 0 if nothing is known."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / NS_PER_S
    except (OSError, ValueError, IndexError):
        return 0.0


def is_traced(pid: int) -> bool:
    """Return whether a debugger traces a process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return not any(line.split() == ["TracerPid:", "0"] for line in status.splitlines())
