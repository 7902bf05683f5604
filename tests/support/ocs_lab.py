r"""Bench for the front ends of an optical switch: crossbar in memory, virtual time.

A transcript is a text file. `scpi> *idn?\n` is sent by a client of the front end `scpi`;
`scpi< ...` is what this client receives upon it, to the byte, before anything else happens.
`tl1.2>` is another client of `tl1`. Bytes are written as in Python, without quotes. Other lines:

    ! pass 25ms          lets time pass
    ! inject JSON        injects a fault
    ! clear              clears all faults
    ! hang scpi          closes a client's connection
    ! reboot             reboots the switch
    ! ports 16           sets the number of inputs (first in the transcript)
    ! profile JSON       sets the profile (first in the transcript)
    # ...                a comment

`python -m tests.support.ocs_lab FILE...` writes what is really sent into transcripts, for review.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from moefabric.core.ocs import DeviceProfile, SettleTime
from moefabric.core.units import duration_ns
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_failures import OcsFailure
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.front_end import FrontEnd, ReplySlot, Session, open_front_end
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.paths import GOLDEN
from tests.support.virtual_timers import VirtualTimers

BUILT_IN = ("scpi", "tl1", "restconf")
TRANSCRIPTS = GOLDEN / "ocs"
NEW_YEAR_S = 1767225600.0
"""2026-01-01 00:00:00 UTC: when a bench's time begins."""
PAIRS = [(1, 13), (2, 14)]
"""The cross-connects of `connected_bench`."""


class MemoryConnection:
    """A client's connection without a network."""

    peer = "192.0.2.1:40000"

    def __init__(self) -> None:
        self.closed = False
        self._sent = bytearray()
        self._slots: list[ReplySlot] = []

    def reserve_reply(self) -> ReplySlot:
        self._slots.append(ReplySlot(self._send_filled))
        return self._slots[-1]

    def send(self, data: bytes) -> None:
        self._sent += data

    def close(self) -> None:
        self.closed = True

    def _send_filled(self) -> None:
        """Send the filled replies, in order."""
        while self._slots and self._slots[0].reply is not None:
            self._sent += self._slots.pop(0).reply or b""

    def take(self) -> bytes:
        """Return what was sent since the last call."""
        data = bytes(self._sent)
        self._sent.clear()
        return data


class BenchClient:
    """One client of one front end."""

    def __init__(self, front_end: FrontEnd) -> None:
        self.connection = MemoryConnection()
        self.session: Session = front_end.open_session(self.connection)

    def send(self, data: bytes) -> bytes:
        """Send bytes, and return what the client receives at once."""
        self.session.receive(data)
        return self.connection.take()


class OcsBench:
    """A switch in memory with its front ends."""

    def __init__(
        self, inputs: int = 12, spec: DeviceSpec | None = None, dialects: Sequence[str] = BUILT_IN
    ) -> None:
        self.timers = VirtualTimers(1)
        self.crossbar = MemoryCrossbar(Ports(inputs))
        self.device = OcsDevice(self.crossbar, self.timers, spec, wall_s=self.wall_s)
        self.front_ends = {name: open_front_end(name, self.device) for name in dialects}

    def wall_s(self) -> float:
        """Return the time of day."""
        return NEW_YEAR_S + self.timers.now_ns() / 1e9

    def client(self, front_end: str) -> BenchClient:
        """Connect a new client."""
        return BenchClient(self.front_ends[front_end])


def connected_bench(dialect: str) -> OcsBench:
    """Return a switch of 12 x 12 with one dialect, and the settled cross-connects `PAIRS`."""
    bench = OcsBench(12, dialects=[dialect])
    bench.device.add(PAIRS)
    bench.timers.advance_ns(1_000_000_000)
    return bench


def check_unharmed(bench: OcsBench) -> None:
    """Assert that all commands, given time, left cross-connects and light as they were."""
    bench.timers.advance_ns(30_000_000_000)
    assert list(bench.device.connects) == PAIRS
    assert bench.crossbar.cross_connects().keys() == {*PAIRS}


MESSAGE = re.compile(r"(?P<client>[a-z][a-z0-9]*(?:\.[0-9]+)?)(?P<way>[<>]) ?(?P<bytes>.*)")


def unescape(text: str) -> bytes:
    r"""Return the bytes of a transcript: `\n`, `\r`, `\t`, `\\`, `\xff` are escapes."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1")


def escape_lines(data: bytes) -> Iterator[str]:
    """Yield the lines of bytes as a transcript has them."""
    for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
        yield line.decode("latin-1").encode("unicode_escape").decode("ascii")


class Transcript:
    """Plays a transcript on a new bench, and records what is really sent."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._clients: dict[str, BenchClient] = {}
        self._spec = DeviceSpec(DeviceProfile(settle=SettleTime(fixed_ns=25_000_000)), "000001")
        self._inputs = 12
        self._bench: OcsBench | None = None

    @property
    def bench(self) -> OcsBench:
        """The bench, created at first use."""
        if self._bench is None:
            self._bench = OcsBench(self._inputs, self._spec)
        return self._bench

    def play(self) -> str:
        """Return the transcript with what is really sent."""
        return "\n".join(line for written in self._lines for line in self._play(written)) + "\n"

    def _play(self, line: str) -> Iterator[str]:
        message = MESSAGE.fullmatch(line)
        if line.startswith("!"):
            yield line
            self._execute(*line[1:].strip().partition(" ")[::2])
        elif message is None:
            yield line
            return
        elif message["way"] == ">":
            yield line
            self._client(message["client"]).session.receive(unescape(message["bytes"]))
        for name, client in self._clients.items():
            yield from (f"{name}< {sent}" for sent in escape_lines(client.connection.take()))

    def _client(self, name: str) -> BenchClient:
        if name not in self._clients:
            self._clients[name] = self.bench.client(name.partition(".")[0])
        return self._clients[name]

    def _execute(self, command: str, argument: str) -> None:
        match command:
            case "pass":
                self.bench.timers.advance_ns(duration_ns(argument))
            case "inject":
                self.bench.device.inject(OcsFailure.from_json(json.loads(argument)))
            case "clear":
                self.bench.device.clear_failures()
            case "hang":
                self._clients.pop(argument).session.end()
            case "reboot":
                self.bench.device.reboot()
            case "ports":
                self._inputs = int(argument)
            case "profile":
                document = {"serial": "000001", "profile": json.loads(argument)}
                self._spec = DeviceSpec.from_json(document)
            case other:
                raise ValueError(f"! {other} has no meaning in a transcript")


def write_profile(folder: Path, text: str) -> str:
    """Write a profile into a folder; return its path."""
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def transcripts() -> list[Path]:
    """Return the paths of all transcripts."""
    return sorted(TRANSCRIPTS.glob("*/*.txt"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(Transcript(path.read_text()).play())
