"""Crossbar in memory."""

from collections.abc import Mapping
from dataclasses import replace

from moefabric.emulator.crossbar.crossbar import (
    CrossConnect,
    InputCounters,
    OutputCounters,
    Ports,
    check_cross_connects,
)


class MemoryCrossbar:
    """Crossbar in memory with the dark time and errors of the others; it needs no privilege."""

    def __init__(self, ports: Ports) -> None:
        """Start without cross-connects."""
        self.ports = ports
        self._cross_connects: dict[int, CrossConnect] = {}
        self._counters = {port: InputCounters() for port in ports.input_numbers}
        self._output_counters = {port: OutputCounters() for port in ports.output_numbers}

    def cross_connects(self) -> dict[int, CrossConnect]:
        """Return the cross-connects by input port."""
        return dict(self._cross_connects)

    def load(self, cross_connects: Mapping[int, CrossConnect]) -> None:
        """Replace all cross-connects."""
        check_cross_connects(self.ports, cross_connects)
        self._cross_connects = dict(cross_connects)

    def forward(self, in_port: int, length_bytes: int, now_ns: int) -> int | None:
        """Return the output port of a frame that enters at `now_ns`; None if it is dropped."""
        counters, cross_connect = self._counters[in_port], self._cross_connects.get(in_port)
        out_port = None
        if cross_connect is None:
            counters = replace(counters, dropped_unlit=counters.dropped_unlit + 1)
        elif now_ns < cross_connect.lit_at_ns:
            counters = replace(counters, dropped_dark=counters.dropped_dark + 1)
        else:
            out_port = cross_connect.out_port
            counters = replace(
                counters,
                forwarded_frames=counters.forwarded_frames + 1,
                forwarded_bytes=counters.forwarded_bytes + length_bytes,
            )
            left = self._output_counters[out_port]
            self._output_counters[out_port] = OutputCounters(
                left.frames + 1, left.bytes + length_bytes
            )
        self._counters[in_port] = counters
        return out_port

    def close(self) -> None:
        """Do nothing, because this crossbar holds no resources."""

    def counters(self) -> dict[int, InputCounters]:
        """Return the counters by input port."""
        return dict(self._counters)

    def output_counters(self) -> dict[int, OutputCounters]:
        """Return the counters by output port."""
        return dict(self._output_counters)
