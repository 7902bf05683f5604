"""Flapping ports: shutters that close and open periodically, to test fault tolerance.

Times and their bounds follow the YANG module polatis-switch, `shutter-config`.
"""

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from moefabric.runtime.event_loop import Timer, Timers

BLOCK_MS = range(10, 10_001)
RESTORE_MS = range(500, 30_001)


SetShutters = Callable[[Collection[int]], None]
"""Opens or closes the shutters of ports; RefusedError (a ValueError) if that is refused."""


@dataclass(frozen=True)
class FlapSettings:
    """Durations and number of cycles of a flapping port."""

    block_ms: int
    restore_ms: int | None = None
    """Time that the light is on between two cycles; None: the port closes and opens once."""
    cycles: int = 1
    """Number of cycles; 0: until `PortFlapper.stop`."""

    def __post_init__(self) -> None:
        if self.block_ms not in BLOCK_MS:
            raise ValueError(f"{self.block_ms}: light is blocked for 10 to 10000 ms")
        if self.restore_ms is not None and self.restore_ms not in RESTORE_MS:
            raise ValueError(f"{self.restore_ms}: light is restored for 500 to 30000 ms")
        if self.cycles not in range(1_000_001):
            raise ValueError(f"{self.cycles}: 0 to 1000000 cycles")


class PortFlapper:
    """Closes and opens ports periodically."""

    def __init__(self, clock: Timers, enable: SetShutters, disable: SetShutters) -> None:
        self._clock, self._enable, self._disable = clock, enable, disable
        self.settings: dict[int, FlapSettings] = {}
        """Settings of the ports, which flap after `start`."""
        self._timers: dict[int, Timer] = {}

    def is_active(self, port: int) -> bool:
        """Return whether a port flaps now."""
        return port in self._timers

    def configure(self, ports: Collection[int], settings: FlapSettings) -> None:
        """Set how these ports flap after `start`."""
        self.stop(ports)
        self.settings |= dict.fromkeys(ports, settings)

    def start(self, ports: Collection[int]) -> None:
        """Start flapping of these ports.

        Raises:
            KeyError: if a port has no settings.
            RefusedError: if the ports can't be closed.
        """
        settings = {port: self.settings[port] for port in ports}
        new = [port for port in settings if port not in self._timers]
        self._disable(new)
        for port in new:
            self._schedule(port, settings[port].block_ms, self._open, settings[port].cycles)

    def stop(self, ports: Collection[int]) -> None:
        """Stop flapping of these ports and open them."""
        for port in [port for port in ports if port in self._timers]:
            self._timers.pop(port).cancel()
            self._try_open(port)

    def reset(self) -> None:
        """Stop flapping and forget all settings, as after a restart."""
        self.stop(list(self._timers))
        self.settings.clear()

    def _schedule(
        self, port: int, time_ms: int, step: Callable[[int, int], None], cycles_left: int
    ) -> None:
        due_ns = self._clock.now_ns() + time_ms * 1_000_000
        self._timers[port] = self._clock.call_at(due_ns, lambda: step(port, cycles_left))

    def _open(self, port: int, cycles_left: int) -> None:
        """Open a port. `cycles_left` includes this cycle; 0 is unlimited."""
        settings = self.settings[port]
        del self._timers[port]
        self._try_open(port)
        if settings.restore_ms is not None and cycles_left != 1:
            self._schedule(port, settings.restore_ms, self._close, max(0, cycles_left - 1))

    def _close(self, port: int, cycles_left: int) -> None:
        del self._timers[port]
        # If the port has failed or a failure refuses the command, flapping ends.
        with contextlib.suppress(ValueError):
            self._disable([port])
            self._schedule(port, self.settings[port].block_ms, self._open, cycles_left)

    def _try_open(self, port: int) -> None:
        with contextlib.suppress(ValueError):  # refused, as in `_close`
            self._enable([port])
