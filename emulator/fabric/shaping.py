"""Shaping of links: HTB limits each end of a link to the emulated rate, without drops."""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.core.units import QueueLimit
from moefabric.emulator.linux import netlink, queueing

LEAST_BPS: Final = 100e3
"""A 64 kB frame takes 5 s at this rate. At lower rates a frame takes longer than TCP's timeouts."""
MOST_BPS: Final = 10e9
"""Limit of one link.

On two cores a bare veth pair carries about 16 Gb/s and a switch in user space about 8 Gb/s. At
higher rates HTB's timer lateness exceeds its burst, and the link is slower than its rate.
"""
_TIMER_LATENESS_S: Final = 500e-6
"""Time by which HTB's timer may be late without loss of rate.

An idle link saves up so many bytes, so a collective may end this much before the fluid bound. The
timers of a machine with idle time are late by 50 to 300 µs.
"""
_TOLERANCE: Final = 2e-3
_QUEUE_FRAMES: Final = 100_000
"""Room of an unlimited queue in frames of up to 64 KB, more than the buffers of all sockets."""
_QUANTUM_BYTES: Final = 65_536


def rate_refusal(rate_bps: float) -> str | None:
    """Return why a link can't be shaped to a rate, with the remedy; None if it can."""
    if not rate_bps >= LEAST_BPS:
        return (
            f"{rate_bps:.0f} b/s is too slow to shape (100 kb/s at least); "
            "scale the bytes down by less"
        )
    if rate_bps > MOST_BPS:
        return (
            f"{rate_bps / 1e9:g} Gb/s is more than this machine can shape (10 Gb/s a link); "
            "scale the bytes down by more"
        )
    return None


def burst_bytes(rate_bps: float) -> int:
    """Return HTB's burst: the bytes that fall due while its timer is late.

    HTB sends a frame whenever its tokens aren't negative, and then subtracts the whole frame. So a
    burst far below 64 kB suffices for 64 kB frames. A larger burst would let each idle link send
    that many bytes too early.
    """
    return max(1, int(rate_bps / 8 * _TIMER_LATENESS_S))


@dataclass(frozen=True)
class Shape:
    """Rate and queue of one interface; `place` names the link that the interface is an end of."""

    place: str
    interface: str
    rate_bps: float
    queue: QueueLimit | None = None

    def requests(self, index: int) -> list[netlink.Request]:
        """Return the requests that shape the interface, whose index is given."""
        burst = burst_bytes(self.rate_bps)
        return queueing.shape(
            self.place, index, self.rate_bps, burst, _QUANTUM_BYTES, self.discipline
        )

    @property
    def discipline(self) -> tuple[str, int]:
        """Kind and limit of the queue; both kinds drop packets at their tail."""
        if self.queue is None:
            return "pfifo", _QUEUE_FRAMES
        return "bfifo" if self.queue.in_bytes else "pfifo", self.queue.size

    def deviations(self, limits: queueing.HtbClass, queue: tuple[str, int] | None) -> Iterator[str]:
        """Yield the kernel's differences from this shape, as verbs with their objects.

        Args:
            limits: The limits that the kernel has.
            queue: Kind and limit of the queue that the kernel has; None if it has none.
        """
        configured = queueing.HtbClass.made(self.rate_bps, burst_bytes(self.rate_bps))
        if _differs(limits.rate_bps, configured.rate_bps):
            yield f"is shaped to {limits.rate_bps:.0f} b/s, not {configured.rate_bps:.0f}"
        if _differs(limits.ceil_bps, configured.ceil_bps):
            yield f"may send {limits.ceil_bps:.0f} b/s (ceil), not {configured.ceil_bps:.0f}"
        bursts = limits.burst_ticks, limits.ceil_burst_ticks
        worst = max(bursts, key=lambda ticks: abs(ticks - configured.burst_ticks))
        if _differs(worst, configured.burst_ticks):
            yield f"sends bursts {worst / configured.burst_ticks:.3g} times as long as configured"
        if queue != self.discipline:
            room = "no queue" if queue is None else "{} limit {}".format(*queue)
            yield f"has {room}, not {'{} limit {}'.format(*self.discipline)}"


def _differs(value: float, configured: float) -> bool:
    return abs(value - configured) > _TOLERANCE * configured


def _indexed(shapes: Sequence[Shape]) -> list[tuple[Shape, int]]:
    """Return shapes with the index of their interface in the calling thread's namespace.

    Raises:
        FabricError: names each link whose interface doesn't exist.
    """
    index_of = {name: index for index, name in socket.if_nameindex()} if shapes else {}
    if missing := [shape for shape in shapes if shape.interface not in index_of]:
        raise FabricError(
            "; ".join(f"{shape.place}: no interface {shape.interface}" for shape in missing)
        )
    return [(shape, index_of[shape.interface]) for shape in shapes]


def apply_shapes(shapes: Sequence[Shape]) -> None:
    """Shape interfaces of the calling thread's namespace.

    Raises:
        FabricError: names each link that failed.
    """
    requests = (shape.requests(index) for shape, index in _indexed(shapes))
    netlink.execute(list(chain.from_iterable(requests)))


def remove_shapes(shapes: Sequence[Shape]) -> None:
    """Remove the shaping of those interfaces of the calling thread's namespace that still exist.

    An interface that ends with a shape costs the kernel a search of all newer blocks of filters on
    the machine. In the reverse order of their creation, it finds each at once.
    """
    index_of = {name: index for index, name in socket.if_nameindex()}
    existing = (shape for shape in reversed(shapes) if shape.interface in index_of)
    netlink.execute([queueing.unshape(s.place, index_of[s.interface]) for s in existing])


def verify_shapes(shapes: Sequence[Shape]) -> None:
    """Check that interfaces of the calling thread's namespace have their rates and queues.

    Raises:
        FabricError: names each link with another rate, ceil, burst or queue.
    """
    indexed = _indexed(shapes)
    classes = netlink.ask([queueing.get_class(shape.place, index) for shape, index in indexed])
    queues = netlink.ask([queueing.get_queue(shape.place, index) for shape, index in indexed])
    faults = list[str]()
    for (shape, index), own_class, queue in zip(indexed, classes, queues, strict=True):
        if (limits := queueing.htb_class(own_class)) is None:
            [root] = netlink.ask([queueing.get_root(shape.place, index)])
            why = f"has qdisc {queueing.kind(root)} where htb was set"
        else:
            why = " and ".join(shape.deviations(limits, queueing.queue_room(queue)))
        if why:
            faults.append(f"{shape.place}: {shape.interface} {why}")
    if faults:
        raise FabricError("; ".join(faults))


def read_queue_counts(shapes: Sequence[Shape]) -> dict[str, queueing.QueueCount]:
    """Return what left the queues of shaped interfaces of this namespace, by interface."""
    indexed = _indexed(shapes)
    answers = netlink.ask([queueing.get_queue(shape.place, index) for shape, index in indexed])
    counts = map(queueing.queue_count, answers)
    named = zip((shape.interface for shape in shapes), counts, strict=True)
    return {name: count for name, count in named if count is not None}
