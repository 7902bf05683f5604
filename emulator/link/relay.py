"""Relay of programmable links: passes frames between interfaces as links and switches would.

`python -m moefabric.emulator.link.relay` reads its ports from the first line of standard input (a
pickled list of `RelayPort`, in hexadecimal), replies `ready`, and relays until the input ends,
which is the end of the process that started it. To each of the lines `counters`, `reset` and
`reset lateness` it replies with its counters (`RelayCounters`) likewise. After the reply, `reset`
sets all of them to zero, and `reset lateness` only those of its own delays.
"""

import ctypes
import gc
import os
import pickle
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO, Final

from moefabric.emulator.link.frame_ring import FrameRing, arrival_ns
from moefabric.emulator.link.lateness import LatenessHistogram
from moefabric.emulator.link.messages import RelayCounters, RelayPort
from moefabric.emulator.link.port import LinkPort

_PR_SET_TIMERSLACK: Final = 29
_IDLE_S: Final = 60.0
_LINE_BYTES: Final = 1 << 20


class Relay:
    """Relays frames between interfaces of the calling process's namespace.

    Args:
        ports: The interfaces.

    Raises:
        FabricError: An interface doesn't exist.
    """

    def __init__(self, ports: Sequence[RelayPort]) -> None:
        """Open the interfaces."""
        self._plan = ports
        self._rings = [FrameRing(port.interface, port.mtu) for port in ports]
        self._switched = {
            bytes.fromhex(mac.replace(":", "")): number
            for number, port in enumerate(ports)
            for mac in port.macs
        }
        self._links = [LinkPort(port.behaviour, seed) for seed, port in enumerate(ports)]
        self._buffer = b""
        self._reset()

    def _reset(self) -> None:
        """Set all counters to zero."""
        self._unsent = self._unknown = 0
        for link in self._links:
            link.reset_counts()
        self._reset_lateness()

    def _reset_lateness(self) -> None:
        """Forget how late frames were."""
        self._lateness = LatenessHistogram()
        self._lost_before = sum(ring.lost() for ring in self._rings)

    def run(self, requests: int, replies: BinaryIO) -> None:
        """Relay until the requests end.

        Args:
            requests: Descriptor of a pipe with lines.
            replies: A line for each request.
        """
        watched = [requests, *(ring.fileno() for ring in self._rings)]
        while True:
            readable, _, _ = select.select(watched, [], [], self._wait_s())
            # Frames that the kernel has seen until now are in the rings, those of later too.
            now_ns = time.monotonic_ns()
            if readable:
                self._take_arrivals()
                if requests in readable and not self._reply(requests, replies):
                    return
            self._pass_on(now_ns)

    def _wait_s(self) -> float:
        times = [ns for link in self._links if (ns := link.next_ns) is not None]
        return min(max(0.0, min(times) - time.monotonic_ns()) / 1e9, _IDLE_S) if times else _IDLE_S

    def _take_arrivals(self) -> None:
        """Hand frames from all interfaces to the links on which they go, in order of time."""
        read = [(number, ring.read()) for number, ring in enumerate(self._rings)]
        wall_ns, now_ns = time.time_ns(), time.monotonic_ns()
        arrivals = [
            (arrival_ns(stamp_ns, wall_ns, now_ns), number, frame)
            for number, frames in read
            for stamp_ns, frame in frames
        ]
        arrivals.sort(key=lambda arrival: arrival[0])
        for at_ns, number, frame in arrivals:
            peer = self._plan[number].peer
            if peer is None:
                peer = self._switched.get(frame[:6])
            if peer is None:
                self._unknown += 1
            else:
                self._links[peer].arrive(frame, at_ns)

    def _pass_on(self, now_ns: int) -> None:
        """Send the frames that have arrived at the ends of their links."""
        for link, ring in zip(self._links, self._rings, strict=True):
            for due_ns, frame in link.due(now_ns):
                try:
                    ring.send(frame)
                except OSError:  # the interface is down or has no room
                    self._unsent += 1
                self._lateness.add(time.monotonic_ns() - due_ns)

    def _reply(self, requests: int, replies: BinaryIO) -> bool:
        """Reply to all requests; return False at their end."""
        data = os.read(requests, _LINE_BYTES)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            counters = self.counters()
            if line == b"reset":
                self._reset()
            elif line == b"reset lateness":
                self._reset_lateness()
            replies.write(pickle.dumps(counters).hex().encode() + b"\n")
            replies.flush()
        return bool(data)

    def counters(self) -> RelayCounters:
        """Return the counters."""
        interfaces = [port.interface for port in self._plan]
        return RelayCounters(
            ports=dict(zip(interfaces, [link.counts for link in self._links], strict=True)),
            lateness=self._lateness.summary(),
            overflows=sum(ring.lost() for ring in self._rings) - self._lost_before,
            unsent=self._unsent,
            unknown=self._unknown,
        )


def _hurry() -> None:
    """Let the kernel wake this process before others, as far as it may be asked."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()  # frames are in no cycles


def main() -> None:
    """Relay as standard input asks; its first line comes alone, before `ready`."""
    line = sys.stdin.readline()
    relay = Relay(pickle.loads(bytes.fromhex(line)))  # noqa: S301 - of our parent
    _hurry()
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    relay.run(sys.stdin.fileno(), sys.stdout.buffer)


if __name__ == "__main__":
    main()
