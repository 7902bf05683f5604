"""Steady streams of numbered, time-stamped frames, and receivers for them.

The kernel wakes a sleeping process a fraction of a millisecond late. So the sender doesn't sleep:
it is a process of its own that only reads the clock and sends, and occupies a core. It records the
send time of every frame in memory that it shares with the process that started it, because a lost
frame carries no time stamp to the receiver.
"""

import ctypes
import mmap
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

import numpy as np

from moefabric.core.errors import FabricError
from moefabric.emulator.linux import namespaces
from moefabric.runtime.processes import wait_or_kill

ETHERTYPE: Final = 0x88B6
"""IEEE Std 802 - Local Experimental EtherType 2."""
_HEADER: Final = struct.Struct("=qq")  # whether to stop, number of frames sent
_RECORD_BYTES: Final = 8
_RECORDS: Final = 1 << 21
"""Number of the latest frames whose times are kept."""
_STAMP: Final = struct.Struct("!QQ")  # number, CLOCK_MONOTONIC in ns
_STAMP_OFFSET: Final = 14
_LATE_NS: Final = 200_000
_RECEIVE_BYTES: Final = 64 << 20
_NICE: Final = -15
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _SO_ATTACH_FILTER = 33, 35, 26
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_PR_SET_TIMERSLACK: Final = 29
_ETH_P_ALL: Final = 3
_FILTER: Final = (  # classic BPF (packet(7)): accept the whole frame if it has our EtherType
    (0x28, 0, 0, 12),
    (0x15, 0, 1, ETHERTYPE),
    (0x06, 0, 0, 0xFFFF),
    (0x06, 0, 0, 0),
)
_FILTER_BYTES: Final = ctypes.create_string_buffer(
    b"".join(struct.pack("HBBI", *instruction) for instruction in _FILTER)
)


def frame_template() -> bytes:
    """Return frame 0 with stamp 0, as short as Ethernet allows."""
    from scapy.layers.l2 import Ether  # takes half a second to import
    from scapy.packet import Raw

    return bytes(
        Ether(dst="02:6d:66:00:00:02", src="02:6d:66:00:00:00", type=ETHERTYPE)
        / Raw(_STAMP.pack(0, 0).ljust(46, b"\0"))
    )


class FrameReceiver:
    """Receives the stream's frames at an interface of a namespace."""

    def __init__(self, namespace: str, interface: str) -> None:
        """Open a socket on the interface.

        Raises:
            FabricError: if the namespace at this path has no such interface.
        """
        self.interface = interface
        self._socket = _packet_socket(namespace, interface, receives=True)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._socket.setblocking(False)

    def received(self) -> list[tuple[int, int]]:
        """Return the number and arrival time (CLOCK_REALTIME, ns) of frames since the last call."""
        frames: list[tuple[int, int]] = []
        try:
            while True:
                frame, ancillary, _, _ = self._socket.recvmsg(128, 64)
                number, _ = _STAMP.unpack_from(frame, _STAMP_OFFSET)
                seconds, ns = struct.unpack("=qq", ancillary[0][2])
                frames.append((number, seconds * 1_000_000_000 + ns))
        except BlockingIOError:
            return frames

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class FrameStream:
    """Context in which frames leave interfaces in turn: frame i leaves interface i mod n."""

    def __init__(
        self, interfaces: Sequence[tuple[str, str]], spacing_ns: int, *, steady: bool = True
    ) -> None:
        """Open a socket on every interface.

        Args:
            interfaces: pairs of a network namespace's path and the name of an interface there.
            spacing_ns: time between frames.
            steady: keep the spacing exactly, which occupies a core; else the spacing is a minimum.

        Raises:
            FabricError: if an interface doesn't exist.
        """
        self.spacing_ns, self._steady = spacing_ns, steady
        self._sockets = [_packet_socket(*interface, receives=False) for interface in interfaces]
        self._fd = os.memfd_create("stream")
        os.ftruncate(self._fd, _HEADER.size + _RECORDS * _RECORD_BYTES)
        self._memory = mmap.mmap(self._fd, 0)
        self._times_ns = np.frombuffer(self._memory, np.int64, offset=_HEADER.size)
        self._sender: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        fds = [sock.fileno() for sock in self._sockets]
        settings = self._fd, self.spacing_ns, int(not self._steady), frame_template().hex()
        words = map(str, (*settings, *fds))
        self._sender = subprocess.Popen(
            [sys.executable, "-m", "moefabric.emulator.linux.frame_stream", *words],
            pass_fds=(self._fd, *fds),
            stdin=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *_: object) -> None:
        struct.pack_into("=q", self._memory, 0, 1)
        if self._sender is not None:
            wait_or_kill(self._sender, 5)
        del self._times_ns
        self._memory.close()
        os.close(self._fd)
        for sock in self._sockets:
            sock.close()

    @property
    def sent(self) -> int:
        """Number of frames sent so far."""
        return int(_HEADER.unpack_from(self._memory)[1])

    def wait_sent(self, count: int, timeout_s: float = 10.0) -> None:
        """Wait until that many frames have been sent.

        Raises:
            FabricError: after `timeout_s`, or if the sender has ended.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.sent < count:
            if time.monotonic() > deadline_s or (self._sender and self._sender.poll() is not None):
                raise FabricError(f"the stream stopped at frame {self.sent} of {count}")
            time.sleep(max(1e-4, (count - self.sent) * self.spacing_ns / 1e9))

    def sent_ns(self, first: int, end: int) -> Sequence[int]:
        """Return the send times of frames `first` to `end` - 1 (CLOCK_MONOTONIC, ns).

        Only the times of the last 2 million frames are kept.
        """
        times_ns: list[int] = self._times_ns[np.arange(first, end) % _RECORDS].tolist()
        return times_ns


def _packet_socket(namespace: str, interface: str, *, receives: bool) -> socket.socket:
    """Open a packet socket on an interface.

    A receiver asks for all protocols and filters frames itself, because only sockets for all
    protocols see a frame before the program of a switch takes it.
    """
    sock = namespaces.run_in(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    try:
        if receives:
            program = struct.pack("HP", len(_FILTER), ctypes.addressof(_FILTER_BYTES))
            sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        sock.bind((interface, _ETH_P_ALL if receives else 0))
    except OSError as error:
        sock.close()
        raise FabricError(f"{interface}: {error.strerror}") from error
    return sock


def main(memory_fd: int, spacing_ns: int, may_sleep: int, frame_hex: str, *fds: int) -> None:
    """Send frames until the shared memory says stop, or the parent process has ended."""
    if not may_sleep:
        os.nice(_NICE)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    parent = os.getppid()
    memory, sockets = mmap.mmap(memory_fd, 0), [socket.socket(fileno=fd) for fd in fds]
    frame, clock = bytearray.fromhex(frame_hex), time.monotonic_ns
    number, due_ns = 0, clock()
    while not memory[0]:
        now_ns = clock()
        if now_ns < due_ns:
            if may_sleep:
                time.sleep((due_ns - now_ns) / 1e9)
            continue
        if not number % 1024 and os.getppid() != parent:
            return
        due_ns = now_ns if now_ns - due_ns > _LATE_NS else due_ns + spacing_ns
        _STAMP.pack_into(frame, _STAMP_OFFSET, number, now_ns)
        with suppress(OSError):  # interface down or queue full: the frame counts as lost
            sockets[number % len(sockets)].send(frame)
        offset = _HEADER.size + number % _RECORDS * _RECORD_BYTES
        struct.pack_into("=q", memory, offset, now_ns)
        number += 1
        struct.pack_into("=q", memory, 8, number)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:]))
