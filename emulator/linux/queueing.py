"""Netlink requests for the queue of an interface: HTB with one class, and its child.

The kernel's structures are in linux/pkt_sched.h.
"""

import errno
import socket
import struct
from typing import Final, NamedTuple, Self

from moefabric.emulator.linux.netlink import Request, attribute, attributes

_NEW_QDISC, _DELETE_QDISC, _GET_QDISC, _NEW_CLASS, _GET_CLASS = 36, 37, 38, 40, 42
_CREATE_OR_REPLACE: Final = 0x500
_TC: Final = struct.Struct("=BxxxiIII")
_ROOT, HTB, _CLASS, QUEUE = 0xFFFFFFFF, 0x10000, 0x10001, 0x100000
"""Handles: the root of an interface, HTB `1:`, its class `1:1` and the queue `10:` below it."""
_KIND, _OPTIONS, _STATS = 1, 2, 7
_HTB_PARAMETERS, _HTB_INIT = 1, 2
_GLOBAL: Final = struct.Struct("=IIIII")
"""struct tc_htb_glob: version, rate divisor of the quantum, default class, two zeros."""
_RATE: Final = struct.Struct("=BBHhHI")
"""struct tc_ratespec: cell log, link layer, overhead, cell alignment, minimum, bytes per second."""
_PARAMETERS: Final = struct.Struct("=IIIII")
"""End of struct tc_htb_opt: buffer and ceil's buffer in ticks, quantum, level, priority."""
_HTB_VERSION, _RATE_TO_QUANTUM, _ETHERNET = 3, 10, 1
_TICK_NS: Final = 64
"""Length of the packet scheduler's tick (/proc/net/psched)."""
_BASIC, _QUEUE_STATS, _PACKETS_64 = 1, 3, 8
_LIMIT: Final = struct.Struct("=I")
"""struct tc_fifo_qopt."""


def _qdisc(index: int, handle: int, parent: int, kind: str, options: bytes) -> bytes:
    body = _TC.pack(socket.AF_UNSPEC, index, handle, parent, 0)
    return body + attribute(_KIND, kind.encode() + b"\0") + attribute(_OPTIONS, options)


def shape(
    place: str, index: int, rate_bps: float, burst: int, quantum: int, queue: tuple[str, int]
) -> list[Request]:
    """Limit what leaves an interface to a rate by HTB, in place of its queueing discipline.

    Args:
        place: Part of the fabric that error messages name.
        index: The interface.
        rate_bps: The rate.
        burst: Bytes that may leave at once after a pause.
        quantum: Bytes that HTB takes from a queue at a time.
        queue: The queueing discipline of what waits, `pfifo` or `bfifo`, and its limit.
    """
    rate = round(rate_bps) // 8
    spec = _RATE.pack(0, _ETHERNET, 0, 0, 0, rate)
    ticks = _burst_ticks(burst, rate)
    options = spec + spec + _PARAMETERS.pack(ticks, ticks, quantum, 0, 0)
    first = _GLOBAL.pack(_HTB_VERSION, _RATE_TO_QUANTUM, 1, 0, 0)
    htb = _qdisc(index, HTB, _ROOT, "htb", attribute(_HTB_INIT, first))
    leaf = _qdisc(index, _CLASS, HTB, "htb", attribute(_HTB_PARAMETERS, options))
    kind, limit = queue
    child = _qdisc(index, QUEUE, _CLASS, kind, _LIMIT.pack(limit))
    what = f"rate {rate_bps:.0f} b/s"
    return [
        Request(place, what, _NEW_QDISC, _CREATE_OR_REPLACE, htb),
        Request(place, what, _NEW_CLASS, _CREATE_OR_REPLACE, leaf),
        Request(place, f"queue {kind} limit {limit}", _NEW_QDISC, _CREATE_OR_REPLACE, child),
    ]


def _burst_ticks(burst: int, rate: int) -> int:
    """Return the time of a burst at a rate in bytes/s, of whole microseconds as tc has it."""
    return int(1e6 * burst / rate) * 1000 // _TICK_NS


def unshape(place: str, index: int) -> Request:
    """Remove what `shape` has made, if it is there."""
    body = _TC.pack(socket.AF_UNSPEC, index, 0, _ROOT, 0)
    return Request(place, "end of a rate", _DELETE_QDISC, 0, body, errno.ENOENT)


class HtbClass(NamedTuple):
    """Limits of a class of HTB.

    Attributes:
        rate_bps: Its rate, in bits per second.
        ceil_bps: The rate that it may borrow up to.
        burst_ticks: How long it may send at once after a pause, in ticks of 64 ns at its rate.
        ceil_burst_ticks: The same at `ceil_bps`.
    """

    rate_bps: float
    ceil_bps: float
    burst_ticks: int
    ceil_burst_ticks: int

    @classmethod
    def made(cls, rate_bps: float, burst: int) -> Self:
        """Return the class that `shape` makes."""
        rate = round(rate_bps) // 8
        ticks = _burst_ticks(burst, rate)
        return cls(8.0 * rate, 8.0 * rate, ticks, ticks)


def get_class(place: str, index: int) -> Request:
    """Ask for the class that `shape` has made; `htb_class` reads the answer."""
    body = _TC.pack(socket.AF_UNSPEC, index, _CLASS, 0, 0)
    return Request(place, "rate", _GET_CLASS, 0, body, errno.ENOENT)


def htb_class(answer: bytes) -> HtbClass | None:
    """Return the limits of a class; None without a class of HTB."""
    options = attributes(attributes(answer, _TC.size).get(_OPTIONS, b""))
    if (parameters := options.get(_HTB_PARAMETERS)) is None:
        return None
    *_, rate = _RATE.unpack_from(parameters)
    *_, ceil = _RATE.unpack_from(parameters, _RATE.size)
    ticks, ceil_ticks, *_ = _PARAMETERS.unpack_from(parameters, 2 * _RATE.size)
    return HtbClass(8.0 * rate, 8.0 * ceil, ticks, ceil_ticks)


def get_root(place: str, index: int) -> Request:
    """Ask for the root of an interface's queueing disciplines; `kind` reads the answer."""
    body = _TC.pack(socket.AF_UNSPEC, index, 0, _ROOT, 0)
    return Request(place, "qdisc", _GET_QDISC, 0, body, errno.ENOENT)


def kind(answer: bytes) -> str:
    """Return the kind of a queueing discipline."""
    return attributes(answer, _TC.size).get(_KIND, b"none\0")[:-1].decode()


def get_queue(place: str, index: int) -> Request:
    """Ask for the queue of HTB's class, whatever its handle.

    `queue_room` and `queue_count` read the answer.
    """
    body = _TC.pack(socket.AF_UNSPEC, index, 0, _CLASS, 0)
    return Request(place, "queue", _GET_QDISC, 0, body, errno.ENOENT)


def queue_room(answer: bytes) -> tuple[str, int] | None:
    """Return the kind of a queue and its limit in packets or bytes; None without a queue.

    Other kinds than `pfifo` and `bfifo` have the limit 0.
    """
    if not answer:
        return None
    name, options = kind(answer), attributes(answer, _TC.size).get(_OPTIONS, b"")
    is_fifo = name in {"pfifo", "bfifo"} and len(options) >= _LIMIT.size
    return name, _LIMIT.unpack_from(options)[0] if is_fifo else 0


class QueueCount(NamedTuple):
    """Packets and bytes that have left a queue, and packets that it has dropped."""

    packets: int
    bytes: int
    drops: int


def queue_count(answer: bytes) -> QueueCount | None:
    """Return the counters of a queue; None without a queue."""
    if not answer:
        return None
    counters = attributes(attributes(answer, _TC.size)[_STATS])
    octets, packets = struct.unpack_from("=QI", counters[_BASIC])
    if _PACKETS_64 in counters:
        (packets,) = struct.unpack("=Q", counters[_PACKETS_64])
    _, _, drops = struct.unpack_from("=III", counters[_QUEUE_STATS])
    return QueueCount(packets, octets, drops)
