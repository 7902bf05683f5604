"""Flapping: ports whose light is blocked and restored again and again, as a test of those who depend on it.

Times and their bounds after YANG polatis-switch, `shutter-config`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from emulator.loop import Timer, Timers

BLOCK_MS = range(10, 10_001)
RESTORE_MS = range(500, 30_001)


class Shutters(Protocol):
    """What can close ports to light and open them."""

    timers: Timers

    def enable(self, ports: Collection[int]) -> None: ...
    def disable(self, ports: Collection[int]) -> None: ...


@dataclass(frozen=True)
class Flap:
    """How a port flaps: closed and open for so long, so many times."""

    block_ms: int
    restore_ms: int | None = None
    """None: it closes once, and opens again."""
    cycles: int = 1
    """0: until it is told to stop."""

    def __post_init__(self) -> None:
        if self.block_ms not in BLOCK_MS:
            raise ValueError(f"{self.block_ms}: light is blocked for 10 to 10000 ms")
        if self.restore_ms is not None and self.restore_ms not in RESTORE_MS:
            raise ValueError(f"{self.restore_ms}: light is restored for 500 to 30000 ms")
        if self.cycles not in range(1_000_001):
            raise ValueError(f"{self.cycles}: 0 to 1000000 cycles")


class Flaps:
    """The ports of a switch that flap, or could."""

    def __init__(self, shutters: Shutters) -> None:
        self._shutters = shutters
        self._set: dict[int, Flap] = {}
        self._timers: dict[int, Timer] = {}

    def __iter__(self) -> Iterator[tuple[int, Flap]]:
        return iter(sorted(self._set.items()))

    def get(self, port: int) -> Flap | None:
        """How a port flaps when it is told to."""
        return self._set.get(port)

    def is_on(self, port: int) -> bool:
        """Whether it does."""
        return port in self._timers

    def set(self, ports: Collection[int], flap: Flap) -> None:
        """Have these ports flap so, when they are told to."""
        self.stop(ports)
        self._set |= dict.fromkeys(ports, flap)

    def start(self, ports: Collection[int]) -> None:
        """Let them flap. KeyError with one that doesn't know how. RefusedError as for any other closing of ports."""
        flaps = {port: self._set[port] for port in ports}
        new = [port for port in flaps if port not in self._timers]
        self._shutters.disable(new)
        for port in new:
            self._later(port, flaps[port].block_ms, self._open, flaps[port].cycles)

    def stop(self, ports: Collection[int]) -> None:
        """Let them be, and open."""
        stopped = [port for port in ports if port in self._timers]
        for port in stopped:
            self._timers.pop(port).cancel()
        if stopped:
            self._try_open(stopped)

    def forget(self) -> None:
        """As after a restart: none flaps, none knows how."""
        self.stop(list(self._timers))
        self._set.clear()

    def _later(self, port: int, time_ms: int, do: "_Step", left: int) -> None:
        timers = self._shutters.timers
        self._timers[port] = timers.at(timers.now_ns() + time_ms * 1_000_000, lambda: do(port, left))

    def _open(self, port: int, left: int) -> None:
        """The port has been closed long enough. `left` counts this cycle; 0 is without end."""
        flap = self._set[port]
        del self._timers[port]
        self._try_open([port])
        if flap.restore_ms is not None and left != 1:
            self._later(port, flap.restore_ms, self._close, max(0, left - 1))

    def _close(self, port: int, left: int) -> None:
        del self._timers[port]
        try:
            self._shutters.disable([port])
        except ValueError:  # refused: the port has failed meanwhile, or the device is told to deny
            return
        self._later(port, self._set[port].block_ms, self._open, left)

    def _try_open(self, ports: Collection[int]) -> None:
        for port in ports:
            try:
                self._shutters.enable([port])
            except ValueError:  # as above
                continue


class _Step(Protocol):
    def __call__(self, port: int, left: int) -> None: ...
