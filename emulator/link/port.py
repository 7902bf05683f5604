"""Direction of a link as a pure state machine: timed frames enter, timed frames leave.

Times are nanoseconds of any clock. The machine has no clock of its own: `arrive` and `due` tell it
the time, and it works out what the link has done until then. So a late caller changes when frames
are passed on, but not which ones are dropped or marked, nor their order.
"""

from collections import deque
from collections.abc import Callable, Hashable
from itertools import count
from random import Random
from typing import Final, Generic, TypeVar
from zlib import crc32

from moefabric.core.link import LinkBehaviour, PathChoice, Scheduling
from moefabric.emulator.link.messages import PortCounts

_ETHERTYPE, _IPV4 = slice(12, 14), b"\x08\x00"
_TOS: Final = 15
_PROTOCOL: Final = 23
_CHECKSUM: Final = slice(24, 26)
_ADDRESSES: Final = slice(26, 34)
_PORTS: Final = slice(34, 38)
_FRAGMENT: Final = slice(20, 22)
_HAS_PORTS: Final = (6, 17)
_VERSION, _PLAIN_HEADER = 14, 0x45
_CE: Final = 3
_HIGHEST_CLASS: Final = 7
_QUANTUM_BYTES: Final = 1514
"""Bytes that a flow may send per turn: a full Ethernet frame."""
_NS_PER_BYTE_AT_1_BPS: Final = 8e9
K = TypeVar("K", bound=Hashable)


def traffic_class(frame: bytes) -> int:
    """Return the class selector, 0 to 7; packets other than IPv4, such as ARP, have the highest."""
    return frame[_TOS] >> 5 if frame[_ETHERTYPE] == _IPV4 else _HIGHEST_CLASS


def is_ecn_capable(frame: bytes) -> bool:
    """Return whether the flow of a frame reacts to marks: ECT(0), ECT(1) or CE (RFC 3168)."""
    return frame[_ETHERTYPE] == _IPV4 and bool(frame[_TOS] & _CE)


def with_congestion_mark(frame: bytes) -> bytes:
    """Return an IPv4 frame with the mark Congestion Experienced.

    The header's checksum follows without a sum over all of it (RFC 1624, equation 3).
    """
    before = frame[_TOS]
    checksum = int.from_bytes(frame[_CHECKSUM])
    # The type-of-service octet is the lower half of its 16-bit word.
    total = (~checksum & 0xFFFF) + (~before & 0xFFFF) + (before | _CE)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    changed = bytearray(frame)
    changed[_TOS] = before | _CE
    changed[_CHECKSUM] = (~total & 0xFFFF).to_bytes(2)
    return bytes(changed)


def flow_of(frame: bytes) -> bytes:
    """Return the identity of a frame's flow: protocol, addresses, and ports if there are any."""
    if frame[_ETHERTYPE] != _IPV4:
        return frame[_ETHERTYPE]
    flow = frame[_PROTOCOL : _PROTOCOL + 1] + frame[_ADDRESSES]
    has_ports = frame[_PROTOCOL] in _HAS_PORTS and frame[_VERSION] == _PLAIN_HEADER
    is_fragment = int.from_bytes(frame[_FRAGMENT]) & 0x3FFF
    return flow + frame[_PORTS] if has_ports and not is_fragment else flow


class Fifo:
    """Frames leave in the order of arrival; the last one is dropped.

    Attributes:
        waiting_bytes: Bytes that wait.
        credit: In fair queues, bytes that the flow may send in this turn.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.waiting_bytes, self.credit = 0, _QUANTUM_BYTES
        self.frames: deque[bytes] = deque()

    def backlog(self, _frame: bytes) -> int:
        """Return the bytes that wait."""
        return self.waiting_bytes

    def push(self, frame: bytes) -> None:
        """Append a frame."""
        self.frames.append(frame)
        self.waiting_bytes += len(frame)

    def pop(self) -> bytes:
        """Remove and return the first frame."""
        frame = self.frames.popleft()
        self.waiting_bytes -= len(frame)
        return frame

    def evict(self) -> bytes:
        """Remove and return the last frame."""
        frame = self.frames.pop()
        self.waiting_bytes -= len(frame)
        return frame


class _Queues(Generic[K]):
    """Queues of frames with the same key."""

    def __init__(self, key_of: Callable[[bytes], K]) -> None:
        """Start empty; the function returns a frame's key."""
        self.waiting_bytes = 0
        self._key_of: Callable[[bytes], K] = key_of
        self._queues: dict[K, Fifo] = {}
        """Queues with waiting frames; in fair queues, in the order of their turns."""

    def backlog(self, frame: bytes) -> int:
        """Return the bytes that wait in the frame's queue."""
        queue = self._queues.get(self._key_of(frame))
        return queue.waiting_bytes if queue else 0

    def push(self, frame: bytes) -> None:
        """Append a frame to its queue."""
        self._queues.setdefault(self._key_of(frame), Fifo()).push(frame)
        self.waiting_bytes += len(frame)

    def _take(self, key: K, remove: Callable[[Fifo], bytes]) -> bytes:
        """Remove and return a frame of a queue."""
        frame = remove(queue := self._queues[key])
        self.waiting_bytes -= len(frame)
        if not queue.waiting_bytes:
            del self._queues[key]
        return frame


class StrictPriority(_Queues[int]):
    """Frames of a higher class leave first; the last one of the lowest class is dropped."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__(traffic_class)

    def pop(self) -> bytes:
        """Remove and return the first frame of the highest class."""
        return self._take(max(self._queues), Fifo.pop)

    def evict(self) -> bytes:
        """Remove and return the last frame of the lowest class."""
        return self._take(min(self._queues), Fifo.evict)


class FairQueues(_Queues[bytes]):
    """Deficit round robin over flows (Shreedhar and Varghese, SIGCOMM 1995).

    The last frame of the longest queue is dropped.
    """

    def __init__(self) -> None:
        """Start empty."""
        super().__init__(flow_of)

    def pop(self) -> bytes:
        """Remove and return the first frame of the flow whose turn it is."""
        name, flow = next(iter(self._queues.items()))
        while len(flow.frames[0]) > flow.credit:
            flow.credit += _QUANTUM_BYTES
            self._queues[name] = self._queues.pop(name)
            name, flow = next(iter(self._queues.items()))
        flow.credit -= len(flow.frames[0])
        return self._take(name, Fifo.pop)

    def evict(self) -> bytes:
        """Remove and return the last frame of the flow with most bytes."""
        name, _ = max(self._queues.items(), key=lambda item: item[1].waiting_bytes)
        return self._take(name, Fifo.evict)


Discipline = Fifo | StrictPriority | FairQueues
"""Frames that wait for a transmitter, `waiting_bytes` in all.

`backlog` returns the bytes that wait in the queue that a frame would join, and `push` appends a
frame. If one waits at least, `pop` removes and returns the frame to send next, and `evict` the one
to drop for lack of room.
"""


def discipline_of(scheduling: Scheduling) -> Discipline:
    """Return the empty queues of a scheduling."""
    kinds: dict[Scheduling, type[Discipline]] = {
        Scheduling.FIFO: Fifo,
        Scheduling.PRIORITY: StrictPriority,
        Scheduling.FAIR: FairQueues,
    }
    return kinds[scheduling]()


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
