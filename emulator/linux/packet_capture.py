"""Program that writes the frames of interfaces to a file in pcapng format.

It runs in the namespace of the interfaces, by its path, in a bare Python. Its argument is a JSON
object: `file`, `length` (bytes to keep of each frame), `interfaces` (a list of name in the kernel,
name in the file, and description), and perhaps `frames` and `bytes`, after which it ends. One line
of JSON says that the capture has begun; SIGTERM ends it, and a second line has the number of frames
in the file and of those that the kernel dropped because the program was too slow.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, Final

if not __package__:  # run by its path: import from the repository, not from this folder
    sys.path = [*sys.path[1:], str(Path(__file__).absolute().parents[3])]

from moefabric.emulator.linux import pcapng
from moefabric.runtime.atomic_file import write_fault

_ALL_PROTOCOLS: Final = 0x0003
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_PACKET_OUTGOING: Final = 4
_SO_TIMESTAMPNS: Final = 35
_SO_RCVBUFFORCE: Final = 33
_ROOM_BYTES: Final = 64 << 20
_LONGEST: Final = 1 << 18
_NS_PER_S: Final = 1_000_000_000
_DIRECTIONS: Final = pcapng.direction(pcapng.INBOUND), pcapng.direction(pcapng.OUTBOUND)


class _Capture:
    """The frames of some interfaces, written to a file.

    Attributes:
        frames: Frames in the file.
        bytes: Their bytes on the wire.
    """

    def __init__(self, settings: dict[str, Any], file: BinaryIO) -> None:
        self._file, self._length = file, int(settings["length"])
        self._most_frames = settings.get("frames") or inf
        self._most_bytes = settings.get("bytes") or inf
        self.frames = self.bytes = 0
        file.write(pcapng.section("moefabric"))
        self._sockets = []
        for interface, name, description in settings["interfaces"]:
            self._sockets.append(_packet_socket(interface))
            file.write(pcapng.interface(name, description, self._length))
        file.flush()

    @property
    def is_full(self) -> bool:
        return self.frames >= self._most_frames or self.bytes >= self._most_bytes

    def run(self, stop: int) -> None:
        """Write frames until `stop` is readable or the file is full."""
        by_fd = {frames.fileno(): number for number, frames in enumerate(self._sockets)}
        poll = select.poll()
        for fd in (*by_fd, stop):
            poll.register(fd, select.POLLIN)
        ends = False
        while not ends and not self.is_full:
            ready = [fd for fd, _ in poll.poll()]
            ends = stop in ready  # frames that arrived before the signal are still written
            for fd, number in by_fd.items():
                if ends or fd in ready:
                    self._write_frames(number)
            self._file.flush()

    def _write_frames(self, number: int) -> None:
        """Write the frames that wait in a socket."""
        while not self.is_full:
            try:
                data, notes, _, address = self._sockets[number].recvmsg(_LONGEST, 64)
            except BlockingIOError:
                return
            s, ns = struct.unpack("=qq", notes[0][2][:16])
            options = _DIRECTIONS[address[2] == _PACKET_OUTGOING]
            captured, time_ns = data[: self._length], s * _NS_PER_S + ns
            self._file.write(pcapng.Packet(number, time_ns, captured, len(data), options).block())
            self.frames += 1
            self.bytes += len(data)

    def finish(self) -> int:
        """Write statistics; return the number of frames that the kernel dropped."""
        total = 0
        for number, frames in enumerate(self._sockets):
            counts = frames.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
            received, dropped = struct.unpack("=II", counts)
            self._file.write(pcapng.statistics(number, time.time_ns(), received, dropped))
            total += dropped
            frames.close()
        return total


def main(arguments: Sequence[str]) -> int:
    """Capture until SIGTERM."""
    settings = json.loads(arguments[0])
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # its parent may block it
    try:
        with Path(settings["file"]).open("wb") as file:
            capture = _Capture(settings, file)
            _print({"ready": True})
            capture.run(read_end)
            dropped = capture.finish()
    except OSError as error:
        sys.exit(write_fault(error))
    _print({"frames": capture.frames, "dropped": dropped})
    return 0


def _packet_socket(interface: str) -> socket.socket:
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    frames.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)
    frames.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    frames.setblocking(False)
    frames.bind((interface, _ALL_PROTOCOLS))
    return frames


def _print(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
