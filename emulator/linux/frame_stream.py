"""Steady streams of numbered frames, and receivers for them.

The kernel wakes a sleeping process a fraction of a millisecond late. So the sender doesn't sleep:
it is a process of its own that only reads the clock and sends, and occupies a core. It records the
send time of every frame in memory that it shares with the process that started it, because a lost
frame carries no time stamp to the receiver.
"""

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

_ETHERTYPE: Final = 0x88B6
"""IEEE Std 802 - Local Experimental EtherType 2."""
_HEADER: Final = struct.Struct("=qq")  # whether to stop, number of frames sent
_RECORD_BYTES: Final = 8
_RECORDS: Final = 1 << 21
"""Number of the latest frames whose times are kept."""
_FRAME: Final = struct.Struct("!6s6sHQ38x")
"""Addresses, EtherType and number: a frame as short as Ethernet allows."""
_ADDRESSES: Final = bytes.fromhex("026d66000002"), bytes.fromhex("026d66000000")
_LATE_NS: Final = 200_000
_RECEIVE_BYTES: Final = 64 << 20
_NICE: Final = -15
_SENT_S: Final = 10.0
_SO_RCVBUFFORCE: Final = 33
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_ETH_P_ALL: Final = 3


class FrameReceiver:
    """Receives the stream's frames at an interface of a namespace."""

    def __init__(self, namespace: str, interface: str) -> None:
        """Open a socket on the interface.

        Raises:
            FabricError: if the namespace at this path has no such interface.
        """
        # Only sockets for all protocols see a frame before the program of a switch takes it.
        self._socket = _packet_socket(namespace, interface, _ETH_P_ALL)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._socket.setblocking(False)

    def received(self) -> list[int]:
        """Return the numbers of the frames since the last call."""
        numbers: list[int] = []
        try:
            while True:
                frame = self._socket.recv(_FRAME.size).ljust(_FRAME.size)
                *_, ethertype, number = _FRAME.unpack(frame)
                if ethertype == _ETHERTYPE:
                    numbers.append(number)
        except BlockingIOError:
            return numbers

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class FrameStream:
    """Context in which frames leave interfaces in turn: frame i leaves interface i mod n."""

    def __init__(self, interfaces: Sequence[tuple[str, str]], spacing_ns: int) -> None:
        """Open a socket on every interface.

        Args:
            interfaces: pairs of a network namespace's path and the name of an interface there.
            spacing_ns: time between frames.

        Raises:
            FabricError: if an interface doesn't exist.
        """
        self.spacing_ns = spacing_ns
        self._sockets = [_packet_socket(*interface) for interface in interfaces]
        self._fd = os.memfd_create("stream")
        os.ftruncate(self._fd, _HEADER.size + _RECORDS * _RECORD_BYTES)
        self._memory = mmap.mmap(self._fd, 0)
        self._times_ns = np.frombuffer(self._memory, np.int64, offset=_HEADER.size)
        self._sender: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        fds = [sock.fileno() for sock in self._sockets]
        words = map(str, (self._fd, self.spacing_ns, *fds))
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

    def wait_sent(self, count: int) -> None:
        """Wait until that many frames have been sent.

        Raises:
            FabricError: after 10 s, or if the sender has ended.
        """
        deadline_s = time.monotonic() + _SENT_S
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


def _packet_socket(namespace: str, interface: str, protocol: int = 0) -> socket.socket:
    """Open a packet socket on an interface; it receives a protocol, or nothing."""
    sock = namespaces.run_in(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    try:
        sock.bind((interface, protocol))
    except OSError as error:
        sock.close()
        raise FabricError(f"{interface}: {error.strerror}") from error
    return sock


def main(memory_fd: int, spacing_ns: int, *fds: int) -> None:
    """Send frames until the shared memory says stop, or the parent process has ended."""
    os.nice(_NICE)
    parent = os.getppid()
    memory, sockets = mmap.mmap(memory_fd, 0), [socket.socket(fileno=fd) for fd in fds]
    number, clock = 0, time.monotonic_ns
    due_ns = clock()
    while not memory[0]:
        now_ns = clock()
        if now_ns < due_ns:
            continue
        if not number % 1024 and os.getppid() != parent:
            return
        due_ns = now_ns if now_ns - due_ns > _LATE_NS else due_ns + spacing_ns
        with suppress(OSError):  # interface down or queue full: the frame counts as lost
            sockets[number % len(sockets)].send(_FRAME.pack(*_ADDRESSES, _ETHERTYPE, number))
        offset = _HEADER.size + number % _RECORDS * _RECORD_BYTES
        struct.pack_into("=q", memory, offset, now_ns)
        number += 1
        struct.pack_into("=q", memory, 8, number)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
