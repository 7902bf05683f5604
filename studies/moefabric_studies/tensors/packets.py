"""Packets of the bounded-loss transport.

Every packet carries whole float32 values, so that packets are independent of each other. Signals
(ACK, STOP, MISSING) travel from the receiver to the sender, all others to the receiver.
"""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES: Final = 1400
"""Payload of a data packet: 350 float32 values. With all headers it fits an MTU of 1500."""
MOST_TENSOR_BYTES: Final = 8 * CHUNK_BYTES * (CHUNK_BYTES - 64)
"""Largest tensor: MISSING has a bit for each chunk and fits a packet."""
_DATA, _PROBE, _ACK, _STOP, _MISSING = range(5)
_HEADER: Final = struct.Struct("!BBHIIII")
"""Kind, loss bound in percent, number of the probe, tensor, its bytes, offset, sequence number."""
HEADER_BYTES: Final = _HEADER.size
_ACK_HEADER: Final = struct.Struct("!BxH")
_SIGNAL: Final = struct.Struct("!BxHI")


@dataclass(frozen=True, slots=True)
class Data:
    """A chunk of a tensor; its values follow the header.

    Attributes:
        tensor: Number of the tensor.
        size: Bytes of the whole tensor.
        loss_percent: Share of the tensor that may be lost.
        offset: Place of the chunk in the tensor, in bytes.
        number: Sequence number, one for each packet that was sent.
    """

    tensor: int
    size: int
    loss_percent: int
    offset: int
    number: int

    def encode(self) -> bytes:
        """Return the packet's header."""
        return _HEADER.pack(
            _DATA, self.loss_percent, 0, self.tensor, self.size, self.offset, self.number
        )


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks for the missing chunks of a tensor; follows the last chunk that is due.

    Attributes:
        tensor: Number of the tensor.
        size: Bytes of the whole tensor.
        loss_percent: Share of the tensor that may be lost.
        probe: Number of the probe; the reply repeats it.
    """

    tensor: int
    size: int
    loss_percent: int
    probe: int

    def encode(self) -> bytes:
        """Return the packet."""
        return _HEADER.pack(_PROBE, self.loss_percent, self.probe, self.tensor, self.size, 0, 0)


@dataclass(frozen=True, slots=True)
class Ack:
    """Sequence numbers of data packets that arrived, and how many had a congestion mark."""

    numbers: tuple[int, ...]
    marked: int

    def encode(self) -> bytes:
        """Return the packet."""
        return _ACK_HEADER.pack(_ACK, self.marked) + struct.pack(
            f"!{len(self.numbers)}I", *self.numbers
        )


@dataclass(frozen=True, slots=True)
class Stop:
    """Signal that enough of a tensor has arrived."""

    tensor: int

    def encode(self) -> bytes:
        """Return the packet."""
        return _SIGNAL.pack(_STOP, 0, self.tensor)


@dataclass(frozen=True, slots=True)
class Missing:
    """Reply to a probe: the chunks that haven't arrived.

    Attributes:
        tensor: Number of the tensor.
        probe: Number of the probe.
        chunks: Numbers of the missing chunks, ascending.
    """

    tensor: int
    probe: int
    chunks: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the packet, with a bit for each chunk."""
        bits = sum(1 << chunk for chunk in self.chunks)
        bitmap = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        return _SIGNAL.pack(_MISSING, self.probe, self.tensor) + bitmap


Packet = Data | Probe | Ack | Stop | Missing


def decode(packet: bytes | memoryview) -> Packet:
    """Return the packet that its bytes describe; a chunk's values start at `HEADER_BYTES`.

    Raises:
        ValueError: The bytes are no packet of this transport.
    """
    try:
        kind = packet[0]
        if kind == _DATA:
            _, loss, _, tensor, size, offset, number = _HEADER.unpack_from(packet)
            return Data(tensor, size, loss, offset, number)
        if kind == _PROBE:
            _, loss, probe, tensor, size, _, _ = _HEADER.unpack_from(packet)
            return Probe(tensor, size, loss, probe)
        if kind == _ACK:
            count = (len(packet) - _ACK_HEADER.size) // 4
            _, marked = _ACK_HEADER.unpack_from(packet)
            return Ack(struct.unpack_from(f"!{count}I", packet, _ACK_HEADER.size), marked)
        _, probe, tensor = _SIGNAL.unpack_from(packet)
    except (IndexError, struct.error) as error:
        raise ValueError(f"a packet of {len(packet)} bytes is too short") from error
    if kind == _STOP:
        return Stop(tensor)
    if kind == _MISSING:
        return Missing(tensor, probe, _ones(bytes(packet[_SIGNAL.size :])))
    raise ValueError(f"unknown packet kind {kind}")


def chunk_count(size: int) -> int:
    """Return the number of chunks of a tensor of `size` bytes."""
    return -(-size // CHUNK_BYTES)


def _ones(bitmap: bytes) -> tuple[int, ...]:
    bits = int.from_bytes(bitmap, "little")
    return tuple(n for n in range(bits.bit_length()) if bits >> n & 1)


_CHUNK_VALUES = CHUNK_BYTES // 4


def by_magnitude(changes: NDArray[np.float32]) -> list[int]:
    """Return the chunks of a tensor, those of the largest changes first.

    Args:
        changes: What each value changes at the receiver: gradients, or updates of parameters.
    """
    starts = np.arange(0, len(changes), _CHUNK_VALUES)
    sums = np.add.reduceat(np.abs(changes), starts)
    sizes = np.diff(np.append(starts, len(changes)))
    return [int(chunk) for chunk in np.argsort(-sums / sizes, kind="stable")]
