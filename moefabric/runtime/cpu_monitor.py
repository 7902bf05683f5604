"""CPU headroom: the idle share of the usable cores in half-second samples, and CPU steal.

Usable cores are those on which this process may run (sched_setaffinity(2)): all, or those that a
sweep has reserved for a run.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0))


def _cpu_ticks() -> list[int]:
    """Return the usable cores' ticks: user, nice, system, idle, iowait, irq, softirq, steal."""
    return core_ticks(Path("/proc/stat").read_text(), os.sched_getaffinity(0))


def core_ticks(stat: str, cores: Collection[int]) -> list[int]:
    """Return the sums of the ticks of some cores.

    Args:
        stat: Contents of /proc/stat (proc(5)).
        cores: Numbers of the cores; if none has a line, the line of all cores counts.
    """
    rows = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    names = {f"cpu{core}" for core in cores}
    chosen = [row for row in rows if row[0] in names] or rows[:1]
    return [sum(map(int, ticks)) for ticks in zip(*(row[1:9] for row in chosen), strict=True)]


def cpu_steal_and_total() -> tuple[int, int]:
    """Return the ticks that a hypervisor has taken from the usable cores so far, and all ticks."""
    ticks = _cpu_ticks()
    return ticks[7], sum(ticks)


def busy_core_seconds() -> float:
    """Return the seconds that the usable cores have worked so far, all cores together."""
    ticks = _cpu_ticks()
    return (sum(ticks[:7]) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuSample:
    """Idle share of the usable cores between two instants of CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    idle: float


def idle_shares(samples: Sequence[CpuSample], windows: Sequence[tuple[int, int]]) -> list[float]:
    """Return the idle shares of the samples that lie at least half in the windows.

    Other samples are left out: CPU load between two collectives harms no packet.

    Args:
        samples: Samples of the whole replay.
        windows: Start and end of the collectives, in ns of CLOCK_MONOTONIC, without overlaps.
    """

    def covered_ns(sample: CpuSample) -> int:
        return sum(
            max(0, min(end, sample.end_ns) - max(start, sample.start_ns)) for start, end in windows
        )

    return [s.idle for s in samples if 2 * covered_ns(s) >= s.end_ns - s.start_ns]


def _idle_share(before: Sequence[int], after: Sequence[int]) -> float | None:
    """Return a machine's idle share between two counts, without CPU steal; None without ticks."""
    passed = [later - earlier for earlier, later in zip(before[:7], after[:7], strict=True)]
    return sum(passed[3:5]) / sum(passed) if sum(passed) else None


@dataclass(eq=False)
class CpuSampler:
    """Context that samples the idle share of usable cores, leaving out the ticks of CPU steal.

    With several machines, a sample is the share of the busiest one.

    Attributes:
        every_s: Seconds between samples.
        other_ticks: Returns the CPU times of other machines, by machine.
        samples: The samples that `idle_shares` has not used.
    """

    every_s: float = 0.5
    other_ticks: Callable[[], Mapping[str, Sequence[int]]] = dict
    samples: list[CpuSample] = field(default_factory=list)
    _windows: list[tuple[int, int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Prepare to sample."""
        self._thread = threading.Thread(target=self._sample, name="cpu", daemon=True)

    def __enter__(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def idle_shares(self, windows: Sequence[tuple[int, int]], *, last: bool = False) -> list[float]:
        """Return the idle shares of the samples that later windows can't cover, and forget them.

        Args:
            windows: Collectives that have ended since the last call, as in `idle_shares`.
            last: Whether no more of them come.
        """
        self._windows += windows
        known_ns = max((end for _, end in self._windows), default=0)
        over = [sample for sample in self.samples if last or sample.end_ns <= known_ns]
        del self.samples[: len(over)]
        shares = idle_shares(over, self._windows)
        needed_ns = self.samples[0].start_ns if self.samples else known_ns
        self._windows = [(start, end) for start, end in self._windows if end >= needed_ns]
        return shares

    def _sample(self) -> None:
        before, start_ns = self._ticks(), time.monotonic_ns()
        while not self._stop.wait(self.every_s):
            ticks, end_ns = self._ticks(), time.monotonic_ns()
            machines = before.keys() & ticks.keys()
            shares = [_idle_share(before[machine], ticks[machine]) for machine in machines]
            if idle := [share for share in shares if share is not None]:
                self.samples.append(CpuSample(start_ns, end_ns, min(idle)))
            before, start_ns = ticks, end_ns

    def _ticks(self) -> dict[str, Sequence[int]]:
        return {"": _cpu_ticks(), **self.other_ticks()}
