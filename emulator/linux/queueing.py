"""Netlink requests for the queue of an interface: HTB with one class, and its child.

The kernel's structures are in linux/pkt_sched.h.
"""

import errno
import socket
import struct
from typing import Final, NamedTuple

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
    ticks = int(1e6 * burst / rate) * 1000 // _TICK_NS  # of whole microseconds, as tc has it
    options = spec + spec + _PARAMETERS.pack(ticks, ticks, quantum, 0, 0)
    first = _GLOBAL.pack(_HTB_VERSION, _RATE_TO_QUANTUM, 1, 0, 0)
    htb = _qdisc(index, HTB, _ROOT, "htb", attribute(_HTB_INIT, first))
    leaf = _qdisc(index, _CLASS, HTB, "htb", attribute(_HTB_PARAMETERS, options))
    kind, limit = queue
    child = _qdisc(index, QUEUE, _CLASS, kind, struct.pack("=I", limit))
    what = f"rate {rate_bps:.0f} b/s"
    return [
        Request(place, what, _NEW_QDISC, _CREATE_OR_REPLACE, htb),
        Request(place, what, _NEW_CLASS, _CREATE_OR_REPLACE, leaf),
        Request(place, f"queue {kind} limit {limit}", _NEW_QDISC, _CREATE_OR_REPLACE, child),
    ]


def unshape(place: str, index: int) -> Request:
    """Remove what `shape` has made, if it is there."""
    body = _TC.pack(socket.AF_UNSPEC, index, 0, _ROOT, 0)
    return Request(place, "end of a rate", _DELETE_QDISC, 0, body, errno.ENOENT)


def get_rate(place: str, index: int) -> Request:
    """Ask for the class that `shape` has made; `rate_bps` reads the answer."""
    body = _TC.pack(socket.AF_UNSPEC, index, _CLASS, 0, 0)
    return Request(place, "rate", _GET_CLASS, 0, body, errno.ENOENT)


def rate_bps(answer: bytes) -> float | None:
    """Return the rate of a class; None without a class of HTB."""
    options = attributes(attributes(answer, _TC.size).get(_OPTIONS, b""))
    if _HTB_PARAMETERS not in options:
        return None
    *_, rate = _RATE.unpack_from(options[_HTB_PARAMETERS])
    return float(rate * 8)


def get_root(place: str, index: int) -> Request:
    """Ask for the root of an interface's queueing disciplines; `kind` reads the answer."""
    body = _TC.pack(socket.AF_UNSPEC, index, 0, _ROOT, 0)
    return Request(place, "qdisc", _GET_QDISC, 0, body, errno.ENOENT)


def kind(answer: bytes) -> str:
    """Return the kind of a queueing discipline."""
    return attributes(answer, _TC.size).get(_KIND, b"none\0")[:-1].decode()


def get_queue(place: str, index: int) -> Request:
    """Ask for the queue below HTB; `queue_counts` reads the answer."""
    body = _TC.pack(socket.AF_UNSPEC, index, QUEUE, 0, 0)
    return Request(place, "queue", _GET_QDISC, 0, body, errno.ENOENT)


class QueueCount(NamedTuple):
    """What has left a queue, and the packets that it has dropped."""

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
