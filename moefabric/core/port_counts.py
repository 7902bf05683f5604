"""Readings of the counters of NICs, OCS ports and uplinks, and the payload between two readings.

A TCP frame has 66 bytes of headers (Ethernet, IPv4, TCP with time stamps), whether it carries data
or only acknowledges some. Counted bytes minus 66 for each counted frame are therefore payload, with
no assumption on the size of frames. A kernel counts a burst that it hands to a veth pair as one
frame with one header, a real NIC counts each frame on the wire; the rule holds for both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.eps import uplink_name
from moefabric.core.nic import Nic
from moefabric.core.topology import Fabric

IP_TCP_BYTES: Final = 20 + 20 + 12
"""Headers of IPv4, TCP and TCP's time stamps."""
FRAME_HEADER_BYTES: Final = 14 + IP_TCP_BYTES
"""Headers that interfaces and queueing disciplines count in a frame: Ethernet's too."""

_LINE_BYTES: Final = 64
GRANT_BYTES: Final = _LINE_BYTES
"""Bytes by which a receiver grants a message, on the message's connection."""

Counts = NDArray[np.int64]
SENT, RECEIVED, INTO_OCS, OUT_OF_OCS = range(4)
"""Columns of payloads. The last two are counted at the port of the OCS on which a NIC ends."""


QueueCounts = Mapping[str, Mapping[str, int]]
"""The counters `packets`, `bytes` and `drops` of each port."""


def framed_bytes(length: int) -> int:
    """Return the bytes of a transfer on its connection: header, payload, padding and trailer.

    The agents' wire format seals a payload with a header and a trailer of one cache line each and
    fills its last line.
    """
    payload_lines = -(-length // _LINE_BYTES)
    return (1 + payload_lines + 1) * _LINE_BYTES


def counted_nics(fabric: Fabric) -> tuple[Nic, ...]:
    """Return all NICs of a fabric, in the order of the first rows of its readings."""
    return tuple(nic for server in fabric.servers for nic in fabric.nics(server))


def counted_ports(fabric: Fabric) -> tuple[str, ...]:
    """Return the names of all rows of a fabric's readings: its NICs, then its leaves' uplinks."""
    uplinks = (uplink_name(leaf, spine) for leaf, spine in fabric.eps_wiring.uplinks)
    return (*map(str, counted_nics(fabric)), *uplinks)


@dataclass(frozen=True)
class PortReading:
    """Counters at one instant, since some earlier instant, with a row for each counted port.

    Attributes:
        bytes: Bytes by port, in the columns SENT, RECEIVED, INTO_OCS and OUT_OF_OCS. An uplink is
            counted at its leaf's end, which sends to the spine.
        frames: Frames, likewise.
    """

    bytes: Counts
    frames: Counts

    def payload_since(self, before: "PortReading") -> Counts:
        """Return the payload that passed each port after an earlier reading."""
        frames = self.frames - before.frames
        # Frames of ARP and probes are shorter than the headers of TCP.
        payload: Counts = np.maximum(self.bytes - before.bytes - FRAME_HEADER_BYTES * frames, 0)
        return payload
