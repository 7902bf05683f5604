"""Crossbar in memory."""

from collections.abc import Mapping

from moefabric.emulator.crossbar.crossbar import CrossConnect, Ports


class MemoryCrossbar:
    """Crossbar in memory with the dark time and errors of the others; it needs no privilege."""

    def __init__(self, ports: Ports) -> None:
        """Start without cross-connects."""
        self.ports = ports
        self._cross_connects: dict[int, CrossConnect] = {}

    def cross_connects(self) -> dict[int, CrossConnect]:
        """Return the cross-connects by input port."""
        return dict(self._cross_connects)

    def load(self, cross_connects: Mapping[int, CrossConnect]) -> None:
        """Replace all cross-connects."""
        self.ports.check([(p, light.out_port) for p, light in cross_connects.items()])
        self._cross_connects = dict(cross_connects)

    def forward(self, in_port: int, now_ns: int) -> int | None:
        """Return the output port of a frame that enters at `now_ns`; None if it is dropped."""
        cross_connect = self._cross_connects.get(in_port)
        if cross_connect is None or now_ns < cross_connect.lit_at_ns:
            return None
        return cross_connect.out_port

    def close(self) -> None:
        """Do nothing, because this crossbar holds no resources."""
