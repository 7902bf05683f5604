"""A bench for the languages of an optical switch: mirrors in memory, time that passes when told to, bytes in and bytes out.

A transcript is a text file. `scpi> *idn?\\n` is sent by a client of the front-end `scpi`, `scpi< ...` is what that client is sent upon
it, to the byte, before anything else happens; `tl1.2>` is another client of `tl1`. Bytes are written as in Python, without quotes.
`! pass 25ms` lets time pass, `! inject JSON`, `! heal`, `! hang scpi` (the client goes), `! port 16`, `! profile JSON` (both first) do what
they say. `#` is a comment. To write what is really said into a transcript: `python -m tests.ocs_lab FILE...`, and read it.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from emulator.light import MemoryCrossbar, Ports
from emulator.loop import VirtualTimers
from emulator.ocs.build import Build, built
from emulator.ocs.faults import Fault
from emulator.ocs.frontend import FrontEnd, Language, Session
from emulator.ocs.languages import LANGUAGES
from emulator.ocs.store import Store
from moefabric.ocs_profile import Profile, Settle
from moefabric.units import duration_ns

GOLDEN = Path(__file__).parent / "golden" / "ocs"
NEW_YEAR_S = 1767225600.0
"""2026-01-01 00:00:00 UTC: when a bench's time begins."""


class MemoryTurn:
    """A reply's place."""

    def __init__(self, wire: "MemoryWire") -> None:
        self._wire = wire
        self.reply: bytes | None = None

    def say(self, data: bytes) -> None:
        if self.reply is None:
            self.reply = data
            self._wire.said()


class MemoryWire:
    """A client's connection without a network: what it was sent is in `sent`."""

    peer = "192.0.2.1:40000"

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = False
        self._owed: list[MemoryTurn] = []

    def turn(self) -> MemoryTurn:
        self._owed.append(MemoryTurn(self))
        return self._owed[-1]

    def send(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def said(self) -> None:
        while self._owed and self._owed[0].reply is not None:
            self.sent += self._owed.pop(0).reply or b""

    def taken(self) -> bytes:
        """What was sent since the last time."""
        taken = bytes(self.sent)
        self.sent.clear()
        return taken


class Client:
    """One client of one front-end."""

    def __init__(self, front_end: FrontEnd) -> None:
        self.wire = MemoryWire()
        self.session: Session = front_end.session(self.wire)

    def told(self, data: bytes) -> bytes:
        """What it is sent at once upon saying this."""
        self.session.heard(data)
        return self.wire.taken()


class Bench:
    """A switch in memory with all of its front-ends."""

    def __init__(
        self,
        inputs: int = 12,
        build: Build | None = None,
        languages: Mapping[str, Language] = LANGUAGES,
    ) -> None:
        self.timers = VirtualTimers(1)
        self.crossbar = MemoryCrossbar(Ports(inputs, inputs))
        self.store = Store(self.crossbar, self.timers, build or Build(), wall_s=self.wall_s)
        self.front_ends = {name: language(self.store) for name, language in languages.items()}

    def wall_s(self) -> float:
        return NEW_YEAR_S + self.timers.now_ns() / 1e9

    def client(self, language: str) -> Client:
        """A new client that speaks this."""
        return Client(self.front_ends[language])


SPOKEN = re.compile(r"(?P<who>[a-z][a-z0-9]*(?:\.[0-9]+)?)(?P<way>[<>]) ?(?P<bytes>.*)")


def unescaped(text: str) -> bytes:
    r"""Bytes as a transcript has them: `\n`, `\r`, `\t`, `\\`, `\xff`; the rest as it is."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1")


def _plain(data: bytes) -> str:
    return data.decode("latin-1").encode("unicode_escape").decode("ascii")


class Transcript:
    """A transcript, played on a new bench: what was really sent takes the place of what is written."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._clients: dict[str, Client] = {}
        self._build = Build(Profile(settle=Settle(fixed_ns=25_000_000)), "000001")
        self._inputs = 12
        self._bench: Bench | None = None

    @property
    def bench(self) -> Bench:
        if self._bench is None:
            self._bench = Bench(self._inputs, self._build)
        return self._bench

    def played(self) -> str:
        """The transcript as it really went."""
        return "\n".join(line for said in self._lines for line in self._played(said)) + "\n"

    def _played(self, line: str) -> Iterator[str]:
        if line.startswith("!"):
            yield line
            self._do(*line[1:].strip().partition(" ")[::2])
        elif (spoken := SPOKEN.fullmatch(line)) is None:
            yield line
            return
        elif spoken["way"] == ">":
            yield line
            self._client(spoken["who"]).session.heard(unescaped(spoken["bytes"]))
        for who, client in self._clients.items():
            if sent := client.wire.taken():
                yield from (f"{who}< {part}" for part in shown(sent))

    def _client(self, who: str) -> Client:
        if who not in self._clients:
            self._clients[who] = self.bench.client(who.partition(".")[0])
        return self._clients[who]

    def _do(self, what: str, said: str) -> None:
        match what:
            case "pass":
                self.bench.timers.pass_ns(duration_ns(said))
            case "inject":
                self.bench.store.inject(Fault.from_json(json.loads(said)))
            case "heal":
                self.bench.store.heal()
            case "hang":
                self._clients.pop(said).session.gone()
            case "reboot":
                self.bench.store.reboot()
            case "ports":
                self._inputs = int(said)
            case "profile":
                told: dict[str, Any] = json.loads(said)
                made = built({"serial": "000001", "profile": told})
                self._build = replace(made, profile=made.profile)
            case other:
                raise ValueError(f"! {other} means nothing in a transcript")


def shown(sent: bytes) -> Iterator[str]:
    """What was sent, a line of the transcript for each line of it."""
    for part in re.findall(rb"[^\n]*\n|[^\n]+", sent):
        yield _plain(part)


def transcripts() -> list[Path]:
    """All transcripts there are."""
    return sorted(GOLDEN.glob("*/*.txt"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(Transcript(path.read_text()).played())
