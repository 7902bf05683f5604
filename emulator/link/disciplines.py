"""Waiting frames of a port, and their order: first in first out, strict priorities, fair queues."""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from moefabric.core.link import Scheduling
from moefabric.emulator.link.headers import flow_of, traffic_class

_QUANTUM_BYTES: Final = 1514
"""Bytes that a flow may send per turn: a full Ethernet frame."""
K = TypeVar("K", bound=Hashable)


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
