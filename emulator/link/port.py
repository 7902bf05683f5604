"""Direction of a link as a pure state machine: timed frames enter, timed frames leave.

Times are nanoseconds of any clock. The machine has no clock of its own: `arrive` and `due` tell it
the time, and it works out what the link has done until then. So a late caller changes when frames
are passed on, but not which ones are dropped or marked, nor their order.
"""

from collections import deque
from itertools import count
from random import Random
from typing import Final
from zlib import crc32

from moefabric.core.link import LinkBehaviour, PathChoice
from moefabric.emulator.link.disciplines import discipline_of
from moefabric.emulator.link.headers import (
    flow_of,
    is_ecn_capable,
    traffic_class,
    with_congestion_mark,
)
from moefabric.emulator.link.messages import PortCounts

_NS_PER_BYTE_AT_1_BPS: Final = 8e9


def _count(classes: dict[int, int], frame: bytes) -> None:
    number = traffic_class(frame)
    classes[number] = classes.get(number, 0) + 1


class _Path:
    """Path of a link with equal ones: a queue, a transmitter, and frames on their way."""

    def __init__(self, behaviour: LinkBehaviour, random: Random, counts: PortCounts) -> None:
        paths, rate_bps = behaviour.paths, behaviour.rate_bps
        self._behaviour, self._random, self.counts = behaviour, random, counts
        self._byte_ns = _NS_PER_BYTE_AT_1_BPS * paths / rate_bps if rate_bps else 0.0
        self._room = None if behaviour.queue_bytes is None else behaviour.queue_bytes // paths
        self._queue = discipline_of(behaviour.scheduling)
        self._free_ns = 0.0
        """When the transmitter has sent its frame. While frames wait, it is never idle."""
        self.flying: deque[tuple[int, bytes]] = deque()
        """Frames on their way, with the time at which they arrive at the other end."""

    def arrive(self, frame: bytes, now_ns: int) -> None:
        """Send a frame at once, queue it or drop it."""
        self.advance(now_ns)
        queue, behaviour, counts = self._queue, self._behaviour, self.counts
        if behaviour.ecn_bytes is not None or behaviour.early_drop_bytes is not None:
            backlog, capable = queue.backlog(frame), is_ecn_capable(frame)
            threshold = behaviour.ecn_bytes if capable else behaviour.early_drop_bytes
            if threshold is not None and backlog >= threshold:
                if not capable:
                    _count(counts.early, frame)
                    return
                frame = with_congestion_mark(frame)
                counts.marked += 1
        if self._free_ns <= now_ns:
            self._free_ns = now_ns
            self._send(frame)
            return
        queue.push(frame)
        while self._room is not None and queue.waiting_bytes > self._room:
            _count(counts.full, queue.evict())
        counts.peak_bytes = max(counts.peak_bytes, queue.waiting_bytes)

    def advance(self, now_ns: int) -> None:
        """Let the transmitter send waiting frames until now."""
        while self._free_ns <= now_ns and self._queue.waiting_bytes:
            self._send(self._queue.pop())

    @property
    def next_ns(self) -> float | None:
        """Instant at which the path is served again; None if it is empty."""
        if self.flying:
            return self.flying[0][0]
        # Frames that were lost on the way may leave frames waiting behind them.
        return self._free_ns if self._queue.waiting_bytes else None

    def _send(self, frame: bytes) -> None:
        """Send a frame from the time at which the transmitter is free."""
        behaviour = self._behaviour
        self._free_ns += len(frame) * self._byte_ns
        if behaviour.loss and self._random.random() < behaviour.loss:
            _count(self.counts.lost, frame)
            return
        arrives_ns = round(self._free_ns) + behaviour.delay_ns
        if behaviour.jitter_ns:
            arrives_ns += self._random.randrange(behaviour.jitter_ns + 1)
            arrives_ns = max(arrives_ns, self.flying[-1][0] if self.flying else 0)
        self.flying.append((arrives_ns, frame))


class LinkPort:
    """Direction of a link.

    Args:
        behaviour: The link's behaviour.
        seed: Seed of losses and jitter.
    """

    def __init__(self, behaviour: LinkBehaviour, seed: int = 0) -> None:
        """Start with an idle link."""
        self.counts = PortCounts()
        random = Random(seed)
        self._paths = [_Path(behaviour, random, self.counts) for _ in range(behaviour.paths)]
        self._by_flow = behaviour.path_choice is PathChoice.FLOW
        self._turns = count()

    def reset_counts(self) -> None:
        """Set all counts to zero."""
        self.counts = PortCounts()
        for path in self._paths:
            path.counts = self.counts

    def arrive(self, frame: bytes, now_ns: int) -> None:
        """Take a frame from the sender. Times of successive calls don't decrease."""
        paths = self._paths
        if len(paths) == 1:
            paths[0].arrive(frame, now_ns)
            return
        turn = crc32(flow_of(frame)) if self._by_flow else next(self._turns)
        paths[turn % len(paths)].arrive(frame, now_ns)

    def due(self, now_ns: int) -> list[tuple[int, bytes]]:
        """Return the frames that have arrived at the other end, with their times, in order."""
        frames: list[tuple[int, bytes]] = []
        for path in self._paths:
            path.advance(now_ns)
            flying = path.flying
            while flying and flying[0][0] <= now_ns:
                frames.append(flying.popleft())
        if len(self._paths) > 1:
            frames.sort(key=lambda timed: timed[0])
        self.counts.packets += len(frames)
        self.counts.bytes += sum(len(frame) for _, frame in frames)
        return frames

    @property
    def next_ns(self) -> float | None:
        """Instant at which arrived frames are asked for again; None if the link is empty."""
        times = [ns for path in self._paths if (ns := path.next_ns) is not None]
        return min(times, default=None)
