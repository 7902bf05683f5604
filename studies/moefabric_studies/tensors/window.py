"""Congestion window of the bounded-loss transport: as DCTCP's, and blind to losses that count.

Each window of packets yields a congested share F: packets with a congestion mark, and losses if
there are more than the tensors bear. The window shrinks by half of the mean of F (RFC 8257,
section 3.3), and otherwise grows by a packet.
"""

from typing import Final

GAIN: Final = 1 / 16
"""Weight of the latest window in the mean of F (RFC 8257, section 4.2)."""
INITIAL: Final = 10.0
"""First window in packets, as TCP's (RFC 6928)."""
LEAST: Final = 2.0
"""Smallest window in packets."""


class Window:
    """A congestion window in packets.

    Attributes:
        packets: Packets that may be in flight.
        alpha: Mean of the congested share of a window.
    """

    def __init__(self, packets: float = INITIAL) -> None:
        self.packets = packets
        self.alpha = 1.0
        self._slow_start = True
        self._round = packets
        self._bearable = 0.0
        self._acknowledged = self._marked = self._lost = 0

    def on_ack(self, count: int, marked: int) -> None:
        """Count packets that arrived.

        Args:
            count: Number of packets.
            marked: How many of them had a congestion mark.
        """
        self._acknowledged += count
        self._marked += marked
        if self._slow_start:
            self.packets += count - marked
        self._end_round()

    def on_loss(self, count: int, bearable: float) -> None:
        """Count packets that didn't arrive.

        Args:
            count: Number of packets.
            bearable: Share of packets whose loss doesn't matter, 0 to 1.
        """
        self._lost += count
        self._bearable = bearable
        self._end_round()

    def _end_round(self) -> None:
        total = self._acknowledged + self._lost
        if total < self._round:
            return
        excess = self._lost if self._lost > self._bearable * total else 0
        congested = (self._marked + excess) / total
        self.alpha += GAIN * (congested - self.alpha)
        if congested:
            self._slow_start = False
            self.packets = max(LEAST, self.packets * (1 - self.alpha / 2))
        elif not self._slow_start:
            self.packets += 1
        self._round = self.packets
        self._acknowledged = self._marked = self._lost = 0
