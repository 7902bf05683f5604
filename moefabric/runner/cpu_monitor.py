"""CPU headroom: the idle share of the machine in half-second samples, and CPU steal."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self


def _cpu_ticks() -> list[int]:
    """Return user, nice, system, idle, iowait, irq, softirq and steal time (proc(5))."""
    return [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def cpu_steal_and_total() -> tuple[int, int]:
    """Return the ticks that a hypervisor has taken from this machine so far, and all ticks."""
    ticks = _cpu_ticks()
    return ticks[7], sum(ticks)


@dataclass(frozen=True)
class CpuSample:
    """Idle share of the machine between two instants of CLOCK_MONOTONIC."""

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


class IdleShares:
    """The idle shares of a replay, piece by piece: samples and windows come when they are over."""

    def __init__(self) -> None:
        self._samples: list[CpuSample] = []
        self._windows: list[tuple[int, int]] = []

    def of(
        self,
        samples: Sequence[CpuSample],
        windows: Sequence[tuple[int, int]],
        *,
        last: bool = False,
    ) -> list[float]:
        """Return the idle shares of the samples that later windows can't cover.

        Args:
            samples: Samples since the last call.
            windows: Collectives that have ended since the last call.
            last: Whether no more of them come.
        """
        self._samples += samples
        self._windows += windows
        known_ns = max((end for _, end in self._windows), default=0)
        over = [sample for sample in self._samples if last or sample.end_ns <= known_ns]
        self._samples = self._samples[len(over) :]
        shares = idle_shares(over, self._windows)
        needed_ns = self._samples[0].start_ns if self._samples else known_ns
        self._windows = [(start, end) for start, end in self._windows if end >= needed_ns]
        return shares


class CpuSampler:
    """Context that samples the machine's idle share, leaving out the ticks of CPU steal."""

    def __init__(self, every_s: float = 0.5) -> None:
        """Prepare to take a sample every `every_s` seconds."""
        self.samples: list[CpuSample] = []
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="cpu", daemon=True)

    def __enter__(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def take_samples(self) -> list[CpuSample]:
        """Return the samples since the last call, and forget them."""
        taken = self.samples[:]
        del self.samples[: len(taken)]
        return taken

    def _sample(self) -> None:
        before, start_ns = _cpu_ticks()[:7], time.monotonic_ns()
        while not self._stop.wait(self._every_s):
            ticks, end_ns = _cpu_ticks()[:7], time.monotonic_ns()
            if total := sum(ticks) - sum(before):
                idle = sum(ticks[3:5]) - sum(before[3:5])
                self.samples.append(CpuSample(start_ns, end_ns, idle / total))
            before, start_ns = ticks, end_ns
