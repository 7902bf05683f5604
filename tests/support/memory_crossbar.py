"""Crossbar in memory."""

from moefabric.emulator.crossbar.crossbar import Lights, Ports


class MemoryCrossbar:
    """Crossbar in memory with the dark time and errors of the others; it needs no privilege."""

    def __init__(self, ports: Ports) -> None:
        """Start without cross-connects."""
        self.ports = ports
        self._cross_connects: Lights = {}

    def cross_connects(self) -> dict[tuple[int, int], int]:
        """Return the cross-connects."""
        return dict(self._cross_connects)

    def load(self, cross_connects: Lights) -> None:
        """Replace all cross-connects."""
        self.ports.check(cross_connects)
        self._cross_connects = dict(cross_connects)

    def forward(self, in_port: int, now_ns: int) -> int | None:
        """Return the output port of a frame that enters at `now_ns`; None if it is dropped."""
        lights = self._cross_connects.items()
        return next((out for (p, out), at_ns in lights if p == in_port and at_ns <= now_ns), None)

    def close(self) -> None:
        """Do nothing, because this crossbar holds no resources."""
