"""Sender of the bounded-loss transport: decides what to send and when; does no I/O.

Chunks of a tensor are sent once, then a PROBE. The receiver replies STOP or MISSING, and the sender
repeats what is missing, again with a PROBE after the last chunk, until it learns STOP. A PROBE
without a reply is repeated. A window limits the packets in flight.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from moefabric_studies.tensors import packets
from moefabric_studies.tensors.channel import Tensor
from moefabric_studies.tensors.window import Window

LEAST_TIMEOUT_S: Final = 0.005
"""Least time after which a packet counts as lost and a PROBE is repeated."""
REORDERING: Final = 3
"""Packets sent later, one of which arrived, after which a packet is lost (RFC 9002, 6.1.1)."""
FIRST_TIMEOUT_S: Final = 0.02
"""Time after which a packet counts as lost before a round trip was measured."""
MOST_TIMEOUT_S: Final = 0.2
"""Longest time between PROBEs."""
_RTT_GAIN: Final = 1 / 8
_LATE: Final = 2.0
"""Round trips after which a packet counts as lost."""


@dataclass
class _Outgoing:
    """A tensor on its way.

    Attributes:
        tensor: The tensor.
        due: Chunks to send, in order.
        probe: Number of the latest probe; 0 before the first.
        probe_at: When to repeat the probe; None while chunks are due.
        backoff: Timeouts between this probe and the next.
    """

    tensor: Tensor
    due: deque[int]
    probe: int = 0
    probe_at: float | None = None
    backoff: float = 1.0


@dataclass(frozen=True, slots=True)
class _InFlight:
    sent_at: float
    bearable: float


class Sender:
    """Sends tensors to one receiver.

    Args:
        window: The congestion window; a new one by default.
        reordering: Packets by which the network reorders packets at most.

    Attributes:
        window: The congestion window.
        packets: Data packets sent so far.
    """

    def __init__(self, window: Window | None = None, reordering: int = REORDERING) -> None:
        self.window = window or Window()
        self._reordering, self._arrived = reordering, 0
        self.packets = 0
        self._tensors: dict[int, _Outgoing] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._rtt_s: float | None = None

    def send(self, tensor: Tensor) -> None:
        """Add a tensor.

        Raises:
            ValueError: The tensor is empty or too large, or its number or order is wrong.
        """
        number, size = tensor.number, len(tensor.values)
        if not 0 < size <= packets.MOST_TENSOR_BYTES:
            most = packets.MOST_TENSOR_BYTES
            raise ValueError(f"tensor {number} has {size} bytes, not 1 to {most}")
        if number in self._tensors:
            raise ValueError(f"tensor {number} is being sent")
        chunks = range(packets.chunk_count(size)) if tensor.order is None else tensor.order
        if sorted(chunks) != list(range(packets.chunk_count(size))):
            raise ValueError(f"tensor {number}: the order lacks chunks or repeats them")
        self._tensors[number] = _Outgoing(tensor, deque(chunks))

    def tensor(self, number: int) -> Tensor | None:
        """Return a tensor on its way; None if the receiver has stopped it."""
        outgoing = self._tensors.get(number)
        return None if outgoing is None else outgoing.tensor

    def due(self, now: float) -> Iterator[packets.Data | packets.Probe]:
        """Yield the packets to send at the instant `now`; each counts as sent when it is yielded.

        The iterator may be left before its end if the network takes no more.
        """
        self._drop_overdue(now)
        for outgoing in sorted(self._tensors.values(), key=lambda one: one.tensor.priority):
            while outgoing.due and len(self._in_flight) < int(self.window.packets):
                yield self._next_chunk(outgoing, now)
            if not outgoing.due and (outgoing.probe_at is None or outgoing.probe_at <= now):
                yield self._next_probe(outgoing, now)

    def _next_chunk(self, outgoing: _Outgoing, now: float) -> packets.Data:
        self.packets += 1
        tensor, percent = outgoing.tensor, outgoing.tensor.loss_percent
        self._in_flight[self.packets] = _InFlight(now, percent / 100)
        offset = outgoing.due.popleft() * packets.CHUNK_BYTES
        return packets.Data(tensor.number, len(tensor.values), percent, offset, self.packets)

    def _next_probe(self, outgoing: _Outgoing, now: float) -> packets.Probe:
        if outgoing.probe_at is not None:
            outgoing.backoff *= 2
        outgoing.probe = outgoing.probe % 0xFFFF + 1
        outgoing.probe_at = now + min(MOST_TIMEOUT_S, outgoing.backoff * self.timeout_s)
        tensor = outgoing.tensor
        return packets.Probe(tensor.number, len(tensor.values), tensor.loss_percent, outgoing.probe)

    def _drop_overdue(self, now: float) -> None:
        """Count packets as lost that weren't acknowledged in time."""
        timeout_s = self.timeout_s
        while self._in_flight:
            number, packet = next(iter(self._in_flight.items()))
            is_late = packet.sent_at + timeout_s <= now
            if not is_late and number + self._reordering > self._arrived:
                return
            del self._in_flight[number]
            self.window.on_loss(1, packet.bearable)

    @property
    def timeout_s(self) -> float:
        """Time without a reply after which a packet counts as lost."""
        if self._rtt_s is None:
            return FIRST_TIMEOUT_S
        return max(LEAST_TIMEOUT_S, _LATE * self._rtt_s)

    def wake_at(self) -> float | None:
        """Return the instant of the next packet or loss if nothing arrives; None if idle."""
        instants = [t.probe_at for t in self._tensors.values() if t.probe_at is not None]
        oldest = next(iter(self._in_flight.values()), None)
        if oldest is not None:
            instants.append(oldest.sent_at + self.timeout_s)
        return min(instants, default=None)

    def on_signal(self, signal: packets.Ack | packets.Stop | packets.Missing, now: float) -> None:
        """Take note of a signal from the receiver.

        Args:
            signal: What arrived, in any order and any number of times.
            now: The instant.
        """
        if isinstance(signal, packets.Ack):
            self._on_ack(signal.numbers, signal.marked, now)
        elif isinstance(signal, packets.Stop):
            self._tensors.pop(signal.tensor, None)
        elif (outgoing := self._tensors.get(signal.tensor)) and signal.probe == outgoing.probe:
            # A reply to an earlier probe lists chunks that have been repeated since.
            self._repeat(outgoing, signal.chunks)

    def _on_ack(self, numbers: Collection[int], marked: int, now: float) -> None:
        known = [sent for n in numbers if (sent := self._in_flight.pop(n, None)) is not None]
        if not known:
            return
        self._arrived = max(self._arrived, *numbers)
        rtt_s = now - max(packet.sent_at for packet in known)
        self._rtt_s = (
            rtt_s if self._rtt_s is None else self._rtt_s + _RTT_GAIN * (rtt_s - self._rtt_s)
        )
        self.window.on_ack(len(known), min(marked, len(known)))

    def _repeat(self, outgoing: _Outgoing, chunks: Sequence[int]) -> None:
        if outgoing.probe_at is None:
            return  # the reply came twice
        last = packets.chunk_count(len(outgoing.tensor.values)) - 1
        outgoing.due.extend(chunk for chunk in chunks if chunk <= last)
        outgoing.probe_at, outgoing.backoff = None, 1.0
