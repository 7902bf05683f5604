"""Receiver of the bounded-loss transport: decides on completion and on replies; does no I/O.

A tensor is complete when no more of its bytes are missing than may be lost. What is missing then is
zero in its values, and marked, so that the reader may put in something else.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from moefabric_studies.tensors import packets

_REMEMBERED: Final = 4096
"""Complete tensors whose late packets are recognized."""


@dataclass(frozen=True)
class Received:
    """A complete tensor.

    Attributes:
        tensor: Its number.
        values: Its bytes; zero where chunks are missing.
        missing: The missing chunks as (offset, bytes).
    """

    tensor: int
    values: bytearray
    missing: tuple[tuple[int, int], ...] = ()

    @property
    def lost_share(self) -> float:
        """Share of the bytes that is missing."""
        return sum(size for _, size in self.missing) / len(self.values)


class _Incoming:
    """A tensor of which packets have arrived."""

    def __init__(self, size: int, loss_percent: int) -> None:
        self.values = bytearray(size)
        self.absent = set(range(packets.chunk_count(size)))
        self.absent_bytes = size
        self.bearable_bytes = size * loss_percent // 100

    def add(self, chunk: int, values: memoryview) -> None:
        """Put a chunk into its place; a second time changes nothing."""
        if chunk in self.absent:
            self.absent.remove(chunk)
            self.values[chunk * packets.CHUNK_BYTES : chunk * packets.CHUNK_BYTES + len(values)] = (
                values
            )
            self.absent_bytes -= len(values)

    @property
    def is_complete(self) -> bool:
        return self.absent_bytes <= self.bearable_bytes

    def gaps(self) -> tuple[tuple[int, int], ...]:
        size = len(self.values)
        offsets = [chunk * packets.CHUNK_BYTES for chunk in sorted(self.absent)]
        return tuple((offset, min(packets.CHUNK_BYTES, size - offset)) for offset in offsets)


class Receiver:
    """Receives tensors from one sender."""

    def __init__(self) -> None:
        self._tensors: dict[int, _Incoming] = {}
        self._complete: set[int] = set()
        self._order: deque[int] = deque()

    def on_data(self, packet: packets.Data, values: memoryview) -> Received | None:
        """Take in a chunk; return the tensor if it completes it.

        The caller sends STOP for a tensor that is returned.

        Args:
            packet: The packet's header.
            values: The chunk's bytes.

        Raises:
            ValueError: The chunk isn't one of a tensor of that size.
        """
        if packet.tensor in self._complete:
            return None
        incoming = self._incoming(packet.tensor, packet.size, packet.loss_percent)
        chunk, rest = divmod(packet.offset, packets.CHUNK_BYTES)
        size = min(packets.CHUNK_BYTES, len(incoming.values) - packet.offset)
        if rest or size <= 0 or len(values) != size:
            raise ValueError(
                f"tensor {packet.tensor}: no chunk of {len(values)} bytes is at {packet.offset}"
            )
        incoming.add(chunk, values)
        if not incoming.is_complete:
            return None
        del self._tensors[packet.tensor]
        self._remember(packet.tensor)
        return Received(packet.tensor, incoming.values, incoming.gaps())

    def on_probe(self, packet: packets.Probe) -> packets.Stop | packets.Missing:
        """Return the reply to a probe."""
        if packet.tensor in self._complete:
            return packets.Stop(packet.tensor)
        incoming = self._incoming(packet.tensor, packet.size, packet.loss_percent)
        return packets.Missing(packet.tensor, packet.probe, tuple(sorted(incoming.absent)))

    def _incoming(self, tensor: int, size: int, loss_percent: int) -> _Incoming:
        if tensor not in self._tensors:
            if not 0 < size <= packets.MOST_TENSOR_BYTES:
                raise ValueError(f"tensor {tensor} of {size} bytes can't be received")
            self._tensors[tensor] = _Incoming(size, loss_percent)
        return self._tensors[tensor]

    def _remember(self, tensor: int) -> None:
        self._complete.add(tensor)
        self._order.append(tensor)
        if len(self._order) > _REMEMBERED:
            self._complete.discard(self._order.popleft())
