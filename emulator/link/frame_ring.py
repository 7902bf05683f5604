"""Frames of an interface, with the time at which the kernel saw them, by memory that it shares.

A ring of packet(7), TPACKET_V2: the kernel writes frames and time stamps, so that reading takes no
system call and a busy reader doesn't falsify times.
"""

import mmap
import socket
import struct
from typing import Final

from moefabric.core.errors import FabricError

_ETH_P_ALL: Final = 3
_SOL_PACKET: Final = 263
_RX_RING, _STATISTICS, _VERSION, _QDISC_BYPASS, _IGNORE_OUTGOING = 5, 6, 10, 20, 23
_TPACKET_V2: Final = 1
_KERNEL, _USER = 0, 1
_HEADER: Final = struct.Struct("=IIIHHII")
"""Status, length, length in the ring, offset of the frame, of its payload, seconds, nanoseconds."""
_STATUS: Final = struct.Struct("=I")
_SLOT_OVERHEAD: Final = 128
"""Bytes of a slot before the frame: the header, an address, and what aligns the frame."""
_BLOCK_BYTES: Final = 1 << 17
_SLOTS: Final = 2048
"""Frames that the kernel keeps for a late reader."""
_NS_PER_S: Final = 1_000_000_000
_MOST_AGE_NS: Final = 10 * _NS_PER_S
"""Older stamps are the departure times of another clock that a paced socket has left."""


def arrival_ns(stamp_ns: int, wall_ns: int, now_ns: int) -> int:
    """Return when a frame that has been read was there, on a clock that nobody sets.

    Args:
        stamp_ns: The kernel's stamp, on the clock that tells the time (CLOCK_REALTIME).
        wall_ns: The present on that clock, at which older and later stamps are taken to be that
            can't be right: of another clock, or of before the clock was set.
        now_ns: The present on CLOCK_MONOTONIC.
    """
    age_ns = wall_ns - stamp_ns
    return now_ns - age_ns if 0 <= age_ns < _MOST_AGE_NS else now_ns


class FrameRing:
    """Reads and writes the frames of one interface of the calling thread's namespace.

    Args:
        interface: Name of the interface.
        mtu: Its largest IP packet in bytes.

    Raises:
        FabricError: There is no such interface, or the caller lacks CAP_NET_RAW.
    """

    def __init__(self, interface: str, mtu: int) -> None:
        """Open the ring."""
        self.interface = interface
        self._slot_bytes = 1 << (mtu + _SLOT_OVERHEAD - 1).bit_length()
        blocks = max(1, _SLOTS * self._slot_bytes // _BLOCK_BYTES)
        self._slots, self._next = blocks * (_BLOCK_BYTES // self._slot_bytes), 0
        self._lost = self._oversized = 0
        request = struct.pack("=IIII", _BLOCK_BYTES, blocks, self._slot_bytes, self._slots)
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            for option, value in ((_VERSION, _TPACKET_V2), (_IGNORE_OUTGOING, 1)):
                self._socket.setsockopt(_SOL_PACKET, option, value)
            self._socket.setsockopt(_SOL_PACKET, _QDISC_BYPASS, 1)
            self._socket.setsockopt(_SOL_PACKET, _RX_RING, request)
            self._memory = mmap.mmap(self._socket.fileno(), blocks * _BLOCK_BYTES)
            self._socket.bind((interface, _ETH_P_ALL))
        except OSError as error:
            raise FabricError(f"{interface}: no packet socket: {error.strerror}") from error
        self.send = self._socket.send
        """Sends a frame from the interface; raises OSError if it is down."""

    def fileno(self) -> int:
        """Return the descriptor, which is readable while frames wait."""
        return self._socket.fileno()

    def read(self) -> list[tuple[int, bytes]]:
        """Return all waiting frames with the kernel's stamps, which `arrival_ns` takes."""
        frames = []
        memory, slot_bytes, slots = self._memory, self._slot_bytes, self._slots
        unpack, number = _HEADER.unpack_from, self._next
        while True:
            at = number * slot_bytes
            status, length, captured, offset, _, seconds, ns = unpack(memory, at)
            if not status & _USER:
                break
            if captured < length:
                self._oversized += 1
            else:
                frame = memory[at + offset : at + offset + length]
                frames.append((seconds * _NS_PER_S + ns, frame))
            _STATUS.pack_into(memory, at, _KERNEL)
            number = (number + 1) % slots
        self._next = number
        return frames

    def lost(self) -> int:
        """Return the number of frames that found the ring full or exceeded the MTU."""
        statistics = self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8)  # clears the kernel's
        self._lost += int(struct.unpack("=II", statistics)[1])
        return self._lost + self._oversized

    def close(self) -> None:
        """Close the ring."""
        self._memory.close()
        self._socket.close()
