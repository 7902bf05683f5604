"""CPU head-room: the share of the machine that is idle, half a second by half a second, while packets fly."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


def _ticks() -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal: proc(5)."""
    return [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def _idle_and_total() -> tuple[int, int]:
    ticks = _ticks()
    return ticks[3] + ticks[4], sum(ticks[:7])


def stolen_and_total() -> tuple[int, int]:
    """What a hypervisor has taken from this machine so far, and all there was, in ticks."""
    ticks = _ticks()
    return ticks[7], sum(ticks)


@dataclass(frozen=True)
class CpuSample:
    """The share of the machine that was idle between two instants of CLOCK_MONOTONIC."""

    began_ns: int
    ended_ns: int
    idle: float


def idle_while(samples: Sequence[CpuSample], windows: Sequence[tuple[int, int]]) -> list[float]:
    """The idle shares of those samples of which at least half lies in the windows, which don't overlap.

    What is planned between two collectives may take all of the machine and harms no packet.
    """
    return [
        sample.idle
        for sample in samples
        if 2 * sum(max(0, min(end, sample.ended_ns) - max(begin, sample.began_ns)) for begin, end in windows)
        >= sample.ended_ns - sample.began_ns
    ]


class CpuSampler:
    """Samples idle share between `with` and its end. What a hypervisor gives to others is no part of the machine."""

    def __init__(self, every_s: float = 0.5) -> None:
        self.samples: list[CpuSample] = []
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="cpu", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        (idle, total), began = _idle_and_total(), time.monotonic_ns()
        while not self._stop.wait(self._every_s):
            before = idle, total, began
            (idle, total), began = _idle_and_total(), time.monotonic_ns()
            if total > before[1]:
                share = (idle - before[0]) / (total - before[1])
                self.samples.append(CpuSample(before[2], began, share))
