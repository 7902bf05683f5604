"""A steady stream of numbered, time-stamped frames out of interfaces, by a process of its own; and ears at others.

A sender that is to be steady does nothing but look at the clock and send: it takes a core for as long as it runs, since sleepers are woken a
fraction of a millisecond late. What it sent, and when, it notes in memory shared with whoever started it: a frame that was lost is known by its absence alone.
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
from types import TracebackType
from typing import Final, Self

import numpy as np

from emulator import namespaces
from moefabric.errors import FabricError

ETHERTYPE: Final = 0x88B6
"""IEEE Std 802 - Local Experimental EtherType 2."""
_HEAD: Final = struct.Struct("=qq")  # whether to stop, frames sent
_NOTE: Final = 8
_NOTES: Final = 1 << 21
"""So many frames are noted; then the oldest are forgotten."""
_STAMP: Final = struct.Struct("!QQ")  # number, CLOCK_MONOTONIC in ns
_STAMP_AT: Final = 14
_LATE_NS: Final = 200_000
_RECEIVE_BYTES: Final = 64 << 20
_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_PACKET_IGNORE_OUTGOING: Final = 23
_SOL_PACKET: Final = 263
_HASTE: Final = -15
_PR_SET_TIMERSLACK: Final = 29
_ETH_P_ALL: Final = 3
_SO_ATTACH_FILTER: Final = 26
_FILTER: Final = (  # BPF as packet(7) has it: load the EtherType, take all of the frame if it is ours, else nothing
    (0x28, 0, 0, 12),
    (0x15, 0, 1, ETHERTYPE),
    (0x06, 0, 0, 0xFFFF),
    (0x06, 0, 0, 0),
)
_FILTER_BYTES: Final = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _FILTER))
_FILTER_AT: Final = ctypes.addressof(_FILTER_BYTES)


def template() -> bytes:
    """The frame, numbered 0 and stamped 0: the shortest that Ethernet carries."""
    from scapy.layers.l2 import Ether  # takes half a second to import
    from scapy.packet import Raw

    return bytes(
        Ether(dst="02:6d:66:00:00:02", src="02:6d:66:00:00:00", type=ETHERTYPE)
        / Raw(_STAMP.pack(0, 0).ljust(46, b"\0"))
    )


class Ears:
    """An interface of a namespace, at which the stream's frames are heard."""

    def __init__(self, namespace: str, interface: str) -> None:
        """FabricError where there is none such."""
        self.interface = interface
        self._socket = _packet_socket(namespace, interface, hears=True)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._socket.setblocking(False)

    def heard(self) -> list[tuple[int, int]]:
        """Number of each frame that came since, and when, by the kernel's clock (CLOCK_REALTIME, ns), in order."""
        found: list[tuple[int, int]] = []
        try:
            while True:
                frame, said, _, _ = self._socket.recvmsg(128, 64)
                number, _ = _STAMP.unpack_from(frame, _STAMP_AT)
                seconds, ns = struct.unpack("=qq", said[0][2])
                found.append((number, seconds * 1_000_000_000 + ns))
        except BlockingIOError:
            return found

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


class Stream:
    """Frames out of interfaces in turn, from the beginning of the block to its end: frame i leaves by the (i mod n)-th of n."""

    def __init__(self, places: Sequence[tuple[str, str]], spacing_ns: int, *, steady: bool = True) -> None:
        """Frames `spacing_ns` apart, or at least that if it needn't be steady, out of these (namespace, interface).

        FabricError where there is no such interface.
        """
        self.spacing_ns, self._steady = spacing_ns, steady
        self._sockets = [_packet_socket(*place, hears=False) for place in places]
        self._fd = os.memfd_create("stream")
        os.ftruncate(self._fd, _HEAD.size + _NOTES * _NOTE)
        self._notes = mmap.mmap(self._fd, 0)
        self._kept = np.frombuffer(self._notes, np.int64, offset=_HEAD.size)
        self._sender: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        fds = [out.fileno() for out in self._sockets]
        words = (self._fd, self.spacing_ns, int(not self._steady), template().hex(), *fds)
        self._sender = subprocess.Popen(
            [sys.executable, "-m", "emulator.stream", *map(str, words)],
            pass_fds=(self._fd, *fds),
            stdin=subprocess.DEVNULL,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        struct.pack_into("=q", self._notes, 0, 1)
        if self._sender is not None:
            try:
                self._sender.wait(5)
            except subprocess.TimeoutExpired:
                self._sender.kill()
                self._sender.wait(5)
        del self._kept
        self._notes.close()
        os.close(self._fd)
        for out in self._sockets:
            out.close()

    @property
    def sent(self) -> int:
        """Frames so far."""
        return int(_HEAD.unpack_from(self._notes)[1])

    def wait_sent(self, count: int, deadline_s: float = 10.0) -> None:
        """Return when so many have been sent. FabricError if that takes longer."""
        ends = time.monotonic() + deadline_s
        while self.sent < count:
            if time.monotonic() > ends or (self._sender and self._sender.poll() is not None):
                raise FabricError(f"the stream stopped at frame {self.sent} of {count}")
            time.sleep(max(1e-4, (count - self.sent) * self.spacing_ns / 1e9))  # that many take so long

    def sent_ns(self, first: int, end: int) -> Sequence[int]:
        """When the frames from `first` up to, not including, `end` were sent: CLOCK_MONOTONIC. The last 2 million are known."""
        listed: list[int] = self._kept[np.arange(first, end) % _NOTES].tolist()
        return listed


def _packet_socket(namespace: str, interface: str, *, hears: bool) -> socket.socket:
    """A socket on an interface. One that hears wants everything, less what its filter turns away: only such are asked before a switch's program is."""
    made = namespaces.within(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    try:
        if hears:
            made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_FILTER), _FILTER_AT))
        made.bind((interface, _ETH_P_ALL if hears else 0))
    except OSError as absent:
        made.close()
        raise FabricError(f"{interface}: {absent.strerror}") from absent
    return made


def main(notes_fd: int, spacing_ns: int, sleepy: int, frame_hex: str, *out_fds: int) -> None:
    """Send until told to stop, or whoever told to send is gone."""
    if not sleepy:
        os.nice(_HASTE)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    parent = os.getppid()
    notes, outs = mmap.mmap(notes_fd, 0), [socket.socket(fileno=fd) for fd in out_fds]
    frame, clock = bytearray.fromhex(frame_hex), time.monotonic_ns
    number, due = 0, clock()
    while not notes[0]:
        now = clock()
        if now < due:
            if sleepy:
                time.sleep((due - now) / 1e9)
            continue
        if not number % 1024 and os.getppid() != parent:
            return
        due = now if now - due > _LATE_NS else due + spacing_ns
        _STAMP.pack_into(frame, _STAMP_AT, number, now)
        with suppress(
            OSError
        ):  # an interface that is down, or a queue that is full: the frame is lost as others are
            outs[number % len(outs)].send(frame)
        struct.pack_into("=q", notes, _HEAD.size + number % _NOTES * _NOTE, now)
        number += 1
        struct.pack_into("=q", notes, 8, number)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:]))
