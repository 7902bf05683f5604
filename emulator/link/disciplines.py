"""Waiting frames of a port, and their order: first in first out, strict priorities, fair queues."""

from collections import deque
from typing import Final

from moefabric.core.link import Scheduling
from moefabric.emulator.link.headers import flow_of, traffic_class

_CLASSES: Final = 8
_QUANTUM_BYTES: Final = 1514
"""Bytes that a flow may send per turn: a full Ethernet frame."""


class Fifo:
    """Frames leave in the order of arrival; the last one is dropped."""

    def __init__(self) -> None:
        """Start empty."""
        self.waiting_bytes = 0
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


class StrictPriority:
    """Frames of a higher class leave first; the last one of the lowest class is dropped."""

    def __init__(self) -> None:
        """Start empty."""
        self.waiting_bytes = 0
        self._queues = [Fifo() for _ in range(_CLASSES)]

    def backlog(self, frame: bytes) -> int:
        """Return the bytes that wait in the frame's class."""
        return self._queues[traffic_class(frame)].waiting_bytes

    def push(self, frame: bytes) -> None:
        """Append a frame to its class."""
        self._queues[traffic_class(frame)].push(frame)
        self.waiting_bytes += len(frame)

    def pop(self) -> bytes:
        """Remove and return the first frame of the highest class."""
        frame = next(queue for queue in reversed(self._queues) if queue.waiting_bytes).pop()
        self.waiting_bytes -= len(frame)
        return frame

    def evict(self) -> bytes:
        """Remove and return the last frame of the lowest class."""
        frame = next(queue for queue in self._queues if queue.waiting_bytes).evict()
        self.waiting_bytes -= len(frame)
        return frame


class _Flow(Fifo):
    """Queue of one flow, with the bytes that the flow may send in this turn."""

    def __init__(self) -> None:
        super().__init__()
        self.credit = _QUANTUM_BYTES


class FairQueues:
    """Deficit round robin over flows (Shreedhar and Varghese, SIGCOMM 1995).

    The last frame of the longest queue is dropped.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.waiting_bytes = 0
        self._flows: dict[bytes, _Flow] = {}
        """Flows with waiting frames, in the order of their turns."""

    def backlog(self, frame: bytes) -> int:
        """Return the bytes of the frame's flow that wait."""
        queue = self._flows.get(flow_of(frame))
        return queue.waiting_bytes if queue else 0

    def push(self, frame: bytes) -> None:
        """Append a frame to its flow's queue."""
        self._flows.setdefault(flow_of(frame), _Flow()).push(frame)
        self.waiting_bytes += len(frame)

    def pop(self) -> bytes:
        """Remove and return the first frame of the flow whose turn it is."""
        name, flow = next(iter(self._flows.items()))
        while len(flow.frames[0]) > flow.credit:
            flow.credit += _QUANTUM_BYTES
            self._flows[name] = self._flows.pop(name)
            name, flow = next(iter(self._flows.items()))
        frame = flow.pop()
        flow.credit -= len(frame)
        return self._without(frame, name, flow)

    def evict(self) -> bytes:
        """Remove and return the last frame of the flow with most bytes."""
        name, flow = max(self._flows.items(), key=lambda item: item[1].waiting_bytes)
        return self._without(flow.evict(), name, flow)

    def _without(self, frame: bytes, name: bytes, flow: _Flow) -> bytes:
        self.waiting_bytes -= len(frame)
        if not flow.waiting_bytes:
            del self._flows[name]
        return frame


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
