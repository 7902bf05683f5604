"""SCPI as an optical switch of the Polatis kind speaks it, for several clients at once: lines in, replies by the line out.

Commands of a line are done one after the other; one that is refused stops none of those behind it. The replies of a line's queries go
together, `;` between them, when the last of them is known: `*opc?` waits until all light has settled. A line is done when its end
has come, and not before.
"""

from collections import deque

from emulator.ocs.frontend import Turn, Wire
from emulator.ocs.scpi_commands import execute, found
from emulator.ocs.scpi_common import Wait
from emulator.ocs.scpi_status import Status
from emulator.ocs.scpi_words import CommandError, ScpiError, Unit, path_after, units
from emulator.ocs.store import Store

LINE_BYTES = 64 * 1024
HELD_LINES = 1024
"""So many lines may wait behind a `*wai`; more are refused."""


class Scpi:
    """The SCPI of one switch. Its error queue is the device's, unless the profile gives each client one."""

    name = "scpi"

    def __init__(self, store: Store) -> None:
        self.store = store
        self._status = Status()

    def session(self, wire: Wire) -> "ScpiSession":
        own = self.store.profile.errors == "client"
        return ScpiSession(self.store, Status() if own else self._status, wire)

    def restarted(self) -> None:
        self._status.restart()


class Reply:
    """What a line is answered with: the replies of its queries, each known now or later."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._parts: list[str | None] = []
        self._ended = False

    def add(self, part: str | None) -> int:
        """One more; None is known later. Its place."""
        self._parts.append(part)
        return len(self._parts) - 1

    def fill(self, place: int, part: str) -> None:
        """It is known now."""
        self._parts[place] = part
        self._say()

    def end(self) -> None:
        """No more follow."""
        self._ended = True
        self._say()

    def _say(self) -> None:
        known = [part for part in self._parts if part is not None]
        if self._ended and len(known) == len(self._parts):
            self._turn.say(";".join(known).encode("ascii", "replace") + b"\n")


class ScpiSession:
    """One client's lines."""

    def __init__(self, store: Store, status: Status, wire: Wire) -> None:
        self._store, self._status, self._wire = store, status, wire
        self._unended = bytearray()
        self._overlong = False
        self._lines: deque[str] = deque()
        self._units: deque[Unit] = deque()
        self._path = ""
        self._reply: Reply | None = None
        self._held = self._going = self._is_gone = False

    def heard(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._unended += line
            self._line()
        self._unended += rest
        if len(self._unended) > LINE_BYTES:
            self._overlong = True
            self._unended.clear()
        self._go_on()

    def gone(self) -> None:
        self._is_gone = True
        self._lines.clear()
        self._units.clear()

    def _line(self) -> None:
        line, overlong = self._unended.decode("ascii", "replace"), self._overlong
        self._unended.clear()
        self._overlong = False
        if overlong or len(line) > LINE_BYTES:
            self._status.add(ScpiError(-363, f"a line has at most {LINE_BYTES} bytes"))
        elif len(self._lines) >= HELD_LINES:
            self._go_on()
            if len(self._lines) >= HELD_LINES:
                self._status.add(ScpiError(-363, f"{HELD_LINES} lines wait already"))
        else:
            self._lines.append(line)

    def _go_on(self) -> None:
        """Do what may be done now: everything, or what stands before a `*wai`."""
        if self._going:
            return
        self._going = True
        try:
            self._go()
        finally:
            self._going = False
            self._store.at_once(begins=False)

    def _go(self) -> None:
        while not self._held and not self._is_gone:
            if self._units:
                self._do(self._units.popleft())
            elif self._reply is not None:
                self._reply.end()
                self._reply = None
            elif self._lines:
                self._path = ""
                self._store.at_once(begins=True)
                self._units.extend(units(self._lines.popleft()))
            else:
                return

    def _do(self, unit: Unit) -> None:
        try:
            self._answer(unit)
        except CommandError as wrong:
            self._status.add(wrong.entry)

    def _answer(self, unit: Unit) -> None:
        for spelling in unit.spellings(self._path):
            if command := found(spelling):
                self._path = path_after(spelling, self._path)
                said = execute(command, self._store, self._status, unit.parameters)
                break
        else:
            raise CommandError(-113, unit.header[:64])
        if isinstance(said, Wait):
            self._wait(said)
        elif said is not None:
            self._replying().add(said)

    def _wait(self, wait: Wait) -> None:
        if wait.reply is not None:
            reply, text = self._replying(), wait.reply
            place = reply.add(None)
            self._store.when_settled(lambda: reply.fill(place, text))
        if wait.holds:
            self._held = True
            self._store.when_settled(self._release)

    def _release(self) -> None:
        self._held = False
        self._go_on()

    def _replying(self) -> Reply:
        if self._reply is None:
            self._reply = Reply(self._wire.turn())
        return self._reply
