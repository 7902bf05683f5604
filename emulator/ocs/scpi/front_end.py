"""SCPI front end for several clients: command lines and their replies.

The commands of a line are executed one after the other; a refused command does not stop the
following ones. The replies to the queries of a line are sent together, separated by `;`, when the
last of them is known: `*OPC?` waits until all light has settled. A line is executed when its end
has been received.
"""

from collections import deque
from dataclasses import dataclass, field

from moefabric.core.ocs_dialect import NoOptions
from moefabric.emulator.ocs.cross_connects import RefusedError
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.front_end import Client, ReplySlot
from moefabric.emulator.ocs.scpi.commands import ERROR_CODES, Wait, find_command
from moefabric.emulator.ocs.scpi.status import ScpiError, Status
from moefabric.emulator.ocs.scpi.syntax import Unit, path_after, units

LINE_BYTES = 64 * 1024
MAX_LINES = 1024
"""Maximum number of lines that wait behind a `*WAI`; further lines are refused."""


class ScpiFrontEnd:
    """SCPI front end of one switch. The profile decides whether clients share an error queue."""

    def __init__(self, device: OcsDevice, _options: NoOptions) -> None:
        self._device = device
        self._status = Status()

    def open_session(self, client: Client) -> "ScpiSession":
        """Open the session of a new client."""
        own_queue = self._device.profile.errors == "client"
        return ScpiSession(self._device, Status() if own_queue else self._status, client)

    def restart(self) -> None:
        """Reset errors and status registers."""
        self._status.restart()


@dataclass
class LineReply:
    """Replies to the queries of a line; None until a reply is known."""

    slot: ReplySlot
    parts: list[str | None] = field(default_factory=list)
    is_complete: bool = False
    """Whether the whole line has been executed."""

    def send(self) -> None:
        """Send the replies if all are known."""
        known = [part for part in self.parts if part is not None]
        if self.is_complete and len(known) == len(self.parts):
            self.slot.fill(";".join(known).encode("ascii", "replace") + b"\n")


class ScpiSession:
    """Session of a client: its waiting lines, and the commands of the current line."""

    def __init__(self, device: OcsDevice, status: Status, client: Client) -> None:
        self._device, self._status, self._client = device, status, client
        self._incomplete = bytearray()
        self._overlong = False
        self._lines: deque[str] = deque()
        self._units: deque[Unit] = deque()
        self._path = ""
        self._reply: LineReply | None = None
        self._blocked = self._running = self._ended = False

    def receive(self, data: bytes) -> None:
        """Execute the lines that these bytes complete."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._incomplete += line
            self._queue_line()
            self._run()
        self._incomplete += rest
        if len(self._incomplete) > LINE_BYTES:
            self._overlong = True
            self._incomplete.clear()

    def end(self) -> None:
        """Drop waiting lines after the connection has closed."""
        self._ended = True
        self._lines.clear()
        self._units.clear()

    def _queue_line(self) -> None:
        line, overlong = self._incomplete.decode("ascii", "replace"), self._overlong
        self._incomplete.clear()
        self._overlong = False
        if overlong or len(line) > LINE_BYTES:
            self._status.add(ScpiError(-363, f"a line has at most {LINE_BYTES} bytes"))
        elif len(self._lines) >= MAX_LINES:
            self._status.add(ScpiError(-363, f"{MAX_LINES} lines wait already"))
        else:
            self._lines.append(line)

    def _run(self) -> None:
        """Execute all lines, or those commands that precede a `*WAI`."""
        if self._running:
            return
        self._running = True
        try:
            while not self._blocked and not self._ended and self._step():
                pass
        finally:
            self._running = False
            self._device.light.set_batch(active=False)

    def _step(self) -> bool:
        """Execute a command, finish a line or begin the next; return False if none is left."""
        if self._units:
            unit = self._units.popleft()
            try:
                self._execute(unit)
            except ScpiError as error:
                self._status.add(error)
            except RefusedError as refused:
                self._status.add(ScpiError(ERROR_CODES[refused.reason], str(refused)))
        elif self._reply is not None:
            self._reply.is_complete = True
            self._reply.send()
            self._reply = None
        elif self._lines:
            self._path = ""
            self._device.light.set_batch(active=True)
            self._units.extend(units(self._lines.popleft()))
        else:
            return False
        return True

    def _execute(self, unit: Unit) -> None:
        for spelling in unit.spellings(self._path):
            if command := find_command(spelling):
                self._path = path_after(spelling, self._path)
                answer = command(self._device, self._status, unit.parameters)
                break
        else:
            raise ScpiError(-113, unit.header[:64])
        if isinstance(answer, Wait):
            self._wait(answer)
        elif answer is not None:
            self._line_reply().parts.append(answer)

    def _wait(self, wait: Wait) -> None:
        if wait.reply is None:
            self._blocked = True
            self._device.when_settled(self._unblock)
            return
        reply = self._line_reply()
        index = len(reply.parts)
        reply.parts.append(None)

        def fill() -> None:
            reply.parts[index] = wait.reply
            reply.send()

        self._device.when_settled(fill)

    def _unblock(self) -> None:
        self._blocked = False
        self._run()

    def _line_reply(self) -> LineReply:
        if self._reply is None:
            self._reply = LineReply(self._client.reserve_reply())
        return self._reply
