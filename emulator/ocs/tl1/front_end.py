"""TL1 front end for several clients: log-in, commands and autonomous messages.

A command is executed when its `;` has been received. Responses are sent in the order of the
commands. The `COMPLD` of a command that changes light is sent when the light has settled. A command
that takes long is acknowledged first.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from moefabric.core.ocs import Group
from moefabric.emulator.ocs.cross_connects import Refusal, RefusedError
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.events import OcsEvent, OcsEventKind
from moefabric.emulator.ocs.front_end import Client, IdleTimeout, ReplySlot
from moefabric.emulator.ocs.tl1 import frames
from moefabric.emulator.ocs.tl1.dialect import Tl1Options
from moefabric.emulator.ocs.tl1.parameters import invalid_aid
from moefabric.emulator.ocs.tl1.syntax import (
    NO_TAG,
    Command,
    CommandReader,
    DeniedError,
    parse_command,
)
from moefabric.emulator.ocs.users import UserError, UserRefusal
from moefabric.runtime.event_loop import Timer


@dataclass(frozen=True)
class Result:
    """Result of an executed command."""

    lines: Iterable[str] = ()
    remark: str = ""
    settles: bool = False
    """Whether the command completes when all light has settled."""
    quoted: bool = True
    """Whether the lines are sent in quotes."""


Execute = Callable[["Tl1Session", Command], Result | None]


@dataclass(frozen=True)
class Verb:
    """A command, and the least privileged group that may use it.

    Attributes:
        needs_login: whether the session has to be logged in.
        aids: the access identifiers that it accepts, in capitals; None: it reads them itself.
    """

    execute: Execute
    group: Group = "view"
    needs_login: bool = True
    aids: tuple[str, ...] | None = None


RANKS: dict[Group, int] = {"view": 0, "user": 1, "admin": 2}


class Tl1FrontEnd:
    """TL1 front end of one switch: sessions, alarms, numbers of autonomous messages."""

    def __init__(self, device: OcsDevice, options: Tl1Options, verbs: Mapping[str, Verb]) -> None:
        self.device, self.options, self.verbs = device, options, verbs
        self.alarms = frames.StandingAlarms()
        self.sessions: set[Tl1Session] = set()
        self._last_atag = 0
        device.events.subscribe(self._on_event)

    def open_session(self, client: Client) -> "Tl1Session":
        """Open the session of a new client."""
        session = Tl1Session(self, client)
        self.sessions.add(session)
        return session

    def restart(self) -> None:
        """Restart the numbering of autonomous messages at 1."""
        self._last_atag = 0

    @property
    def header(self) -> str:
        """The header of a message that is sent now."""
        return frames.heading(self.device.system.name, self.device.wall_s())

    def numbered(self, message: frames.Message) -> bytes:
        """Return a message with the next number, so that clients notice missing messages."""
        self._last_atag += 1
        return frames.autonomous(self.header, self._last_atag, message)

    def _on_event(self, event: OcsEvent) -> None:
        if event.kind is OcsEventKind.SETTINGS and not event.ports:
            for session in self.sessions:
                session.idle.restart()
        message = self.alarms.update(event, self.device.wall_s())
        if message is not None:
            frame = self.numbered(message)
            for session in list(self.sessions):
                session.send_message(frame)


class Tl1Session:
    """Session of a client: log-in, commands, autonomous messages.

    Attributes:
        front_end: what all sessions share.
        wants_messages: whether the session gets autonomous messages.
    """

    def __init__(self, front_end: Tl1FrontEnd, client: Client) -> None:
        self.device, self.options = front_end.device, front_end.options
        self.front_end, self._client, self._reader = front_end, client, CommandReader()
        self.wants_messages = self.options.messages
        self._number = 0
        self._waiting: dict[ReplySlot, Timer] = {}
        """Slots of commands that wait for light, with the timers of their acknowledgements."""
        self.idle = IdleTimeout(
            self.device.timers, self._idle_limit_ns, lambda: bool(self._waiting), self._time_out
        )
        self._ended = False

    @property
    def user(self) -> str | None:
        """The user who is logged in; None after an admin has ended the session."""
        return self.device.users.user_of(self._number)

    @property
    def group(self) -> Group:
        """The group of the user."""
        return self.device.users.group(self.user or "")

    def log_in(self, user: str) -> None:
        """Log in as a user, whose group has its idle timeout."""
        self.log_out()
        self._number = self.device.users.log_in(user, "tl1", self._client.peer, self._client.close)
        self.idle.restart()

    def log_out(self) -> None:
        """Log out, which ends the idle timeout."""
        self.device.users.log_out(self._number)
        self.idle.restart()

    def receive(self, data: bytes) -> None:
        """Execute the commands that these bytes complete."""
        for text in self._reader.feed(data):
            if self._ended:
                return
            self.idle.active()
            self._read(text)

    def end(self) -> None:
        """Log out and cancel timers after the connection has closed."""
        self._ended = True
        self.log_out()
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self.front_end.sessions.discard(self)

    def send_message(self, frame: bytes) -> None:
        """Send an autonomous message if the session receives them."""
        if self.wants_messages and (self.user is not None or not self.options.login):
            self._client.send(frame + self.options.prompt.encode())

    # ---- commands

    def _read(self, text: str | None) -> None:
        if text is None:
            self._client.reserve_reply().fill(frames.acknowledgement("NG", NO_TAG))
            return
        try:
            command = parse_command(text)
        except DeniedError as error:
            self._deny(self._client.reserve_reply(), error.ctag, error)
            return
        if command is None:
            return
        if len(self._waiting) >= self.options.outstanding:
            self._client.send(frames.acknowledgement("RL", command.ctag))
            return
        self._answer(command, self._client.reserve_reply())

    def _answer(self, command: Command, slot: ReplySlot) -> None:
        try:
            result = self._execute(command)
        except DeniedError as error:
            self._deny(slot, command.ctag, error)
            return
        if result.settles and self.options.completes == "settled":
            self._wait(slot, command, result)
        else:
            self._complete(slot, command, result)

    def _execute(self, command: Command) -> Result:
        """Execute a command; raise DeniedError if it is refused."""
        code, verb, user = self.options.code, self.front_end.verbs.get(command.verb), self.user
        if user is None and self.options.login and (verb is None or verb.needs_login):
            raise DeniedError(code(Refusal.NOT_LOGGED_IN), "Not logged in")
        if verb is None:
            raise DeniedError(code(Refusal.NO_SUCH_COMMAND), f"Unknown command {command.verb}")
        if command.tid not in ("", self.device.system.name):
            raise DeniedError("IITA", "Mismatched TID")
        if command.fields(0):
            raise DeniedError("INUP", "Unexpected parameter in block 0")
        if user is not None and RANKS[self.group] < RANKS[verb.group]:
            raise DeniedError("PICC", "Permission denied")
        if verb.aids is not None and command.aid.value.upper() not in verb.aids:
            raise invalid_aid(command)
        try:
            return verb.execute(self, command) or Result()
        except RefusedError as refused:
            raise DeniedError(code(refused.reason), str(refused)) from refused
        except UserError as error:
            is_known = error.reason in (UserRefusal.EXISTS, UserRefusal.ABSENT)
            raise DeniedError("IDNV" if is_known else "PICC", error.reason.value) from error

    def _wait(self, slot: ReplySlot, command: Command, result: Result) -> None:
        """Complete a command once all light has settled; acknowledge it if that takes long."""

        def complete() -> None:
            if timer := self._waiting.pop(slot, None):
                timer.cancel()
                self.idle.active()
                self._complete(slot, command, result)

        frame = frames.acknowledgement(self.options.slow_ack, command.ctag)
        slow_ns = round(self.options.slow_s * 1e9)
        self._waiting[slot] = self.device.call_later(slow_ns, lambda: self._client.send(frame))
        self.device.when_settled(complete)

    def _complete(self, slot: ReplySlot, command: Command, result: Result) -> None:
        lines = map(frames.quote, result.lines) if result.quoted else result.lines
        self._respond(slot, command.ctag, "COMPLD", lines, result.remark)

    def _deny(self, slot: ReplySlot, ctag: str, error: DeniedError) -> None:
        completion = "DENY" if error.lines is None else "PRTL"
        lines = [error.code, *map(frames.quote, error.lines or ())]
        self._respond(slot, ctag, completion, lines, error.text)

    def _respond(
        self, slot: ReplySlot, ctag: str, code: str, lines: Iterable[str], remark: str
    ) -> None:
        frame = frames.response(self.front_end.header, ctag, code, lines, remark)
        slot.fill(frame + self.options.prompt.encode())

    # ---- idle timeout

    def _idle_limit_ns(self) -> int:
        if self.user is None:
            return 0
        system = self.device.system
        limit_s = system.session_timeout_s if self.group == "admin" else system.user_timeout_s
        return limit_s * 1_000_000_000

    def _time_out(self) -> None:
        message = frames.Message("A ", "CANC", (f'"{self.user}"',))
        self._client.send(self.front_end.numbered(message) + self.options.prompt.encode())
        self.log_out()
        if self.options.timed_out == "hang up":
            self._client.close()
