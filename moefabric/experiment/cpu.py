"""CPU head-room: the share of the machine that is idle, second by second, while an experiment runs."""

import threading
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


class CpuSampler:
    """Samples idle share once a second between `with` and its end. What a hypervisor gives to others is no part of the machine."""

    def __init__(self, every_s: float = 1.0) -> None:
        self.idle: list[float] = []
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
        idle, total = _idle_and_total()
        while not self._stop.wait(self._every_s):
            before = idle, total
            idle, total = _idle_and_total()
            if total > before[1]:
                self.idle.append((idle - before[0]) / (total - before[1]))
