"""Program that writes the frames of an interface to a file in pcap format.

It runs in the namespace of the interface, by its path: it imports the standard library only. One
line of JSON says that the capture has begun; SIGTERM ends it, and a second line has the number of
frames in the file and of those that the kernel dropped because the program was too slow.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

_ALL_PROTOCOLS: Final = 0x0003
_ETHERNET: Final = 1
_MAGIC_NS: Final = 0xA1B23C4D
"""pcap with times in nanoseconds."""
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_TIMESTAMPNS: Final = 35
_SO_RCVBUFFORCE: Final = 33
_ROOM_BYTES: Final = 64 << 20
_LONGEST: Final = 1 << 18
_NS_PER_S: Final = 1_000_000_000


def main(arguments: Sequence[str]) -> int:
    """Capture until SIGTERM. Arguments: interface, file, bytes to keep of each frame."""
    interface, path, length = arguments[0], Path(arguments[1]), int(arguments[2])
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # its parent may block it
    with _packet_socket(interface) as frames, path.open("wb") as file:
        file.write(struct.pack("=IHHiIII", _MAGIC_NS, 2, 4, 0, 0, length, _ETHERNET))
        file.flush()
        _say({"ready": True})
        written, ends = 0, False
        while not ends:
            ready, _, _ = select.select([frames.fileno(), read_end], [], [])
            ends = read_end in ready  # frames that arrived before the signal are still written
            written += _write_frames(frames, file, length)
        _, dropped = struct.unpack("=II", frames.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    _say({"frames": written, "dropped": dropped})
    return 0


def _packet_socket(interface: str) -> socket.socket:
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    frames.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)
    frames.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    frames.setblocking(False)
    frames.bind((interface, _ALL_PROTOCOLS))
    return frames


def _write_frames(frames: socket.socket, file: BinaryIO, length: int) -> int:
    """Write the frames that wait in the socket, and return their number."""
    written = 0
    while True:
        try:
            data, notes, _, _ = frames.recvmsg(_LONGEST, 64)
        except BlockingIOError:
            return written
        s, ns = struct.unpack("=qq", notes[0][2][:16])
        kept = data[:length]
        file.write(struct.pack("=IIII", s & 0xFFFFFFFF, ns % _NS_PER_S, len(kept), len(data)))
        file.write(kept)
        written += 1


def _say(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
