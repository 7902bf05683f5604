"""Byte and frame counters of all network interfaces of a namespace, by one request (rtnetlink(7)).

A dump of RTM_GETSTATS costs a tenth of a dump of RTM_GETLINK, because it holds counters only. All
messages of a dump are equally long, so that numpy reads them at once.
"""

import socket
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.errors import FabricError

_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBHII")  # struct if_stats_msg
_GETSTATS, _NEWSTATS, _ERROR, _DONE = 94, 92, 2, 3
_REQUEST_DUMP: Final = 0x301
_LINK_64: Final = 1
"""Filter and attribute of struct rtnl_link_stats64."""
_COUNTERS_AT: Final = _HEADER.size + _REQUEST.size + 4
_INDEX_AT: Final = _HEADER.size + 4
_REPLY_BYTES: Final = 1 << 18
_REPLY_S: Final = 2.0

Counts = NDArray[np.int64]


def read_link_counters(kernel: socket.socket) -> tuple[Counts, Counts]:
    """Read the counters of all interfaces of a namespace; this needs no privilege.

    Args:
        kernel: A netlink socket (NETLINK_ROUTE) of the namespace, by whomever it was made.

    Returns:
        The interfaces' indices, and for each interface its frames in, frames out, bytes in and
        bytes out.

    Raises:
        FabricError: If the kernel refuses or doesn't reply.
    """
    body = _REQUEST.pack(socket.AF_UNSPEC, 0, 0, 0, _LINK_64)
    length = _HEADER.size + len(body)
    kernel.send(_HEADER.pack(length, _GETSTATS, _REQUEST_DUMP, 0, 0) + body)
    parts: list[NDArray[np.uint8]] = []
    ended = False
    while not ended:
        try:
            reply = kernel.recv(_REPLY_BYTES)
        except TimeoutError:
            raise FabricError("counters of interfaces: the kernel doesn't reply") from None
        part, ended = _messages(reply)
        parts.append(part)
    rows = np.concatenate([part for part in parts if len(part)])
    indices = rows[:, _INDEX_AT : _INDEX_AT + 4].copy().view(np.uint32)[:, 0].astype(np.int64)
    counts = rows[:, _COUNTERS_AT : _COUNTERS_AT + 32].copy().view(np.int64)
    return indices, counts


def _messages(reply: bytes) -> tuple[NDArray[np.uint8], bool]:
    """Return the statistics messages of a reply, one a row, and whether the dump ends."""
    length, kind, *_ = _HEADER.unpack_from(reply)
    if kind == _ERROR:
        (code,) = struct.unpack_from("=i", reply, _HEADER.size)
        raise FabricError(f"counters of interfaces: the kernel refuses them (errno {-code})")
    if kind == _DONE:
        return np.empty((0, 0), np.uint8), True
    count, rest = divmod(len(reply), length)
    rows = np.frombuffer(reply, np.uint8, count * length).reshape(count, length)
    return rows, bool(rest)
