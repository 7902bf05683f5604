"""TL1 for several clients at once: sessions that log in, give commands, and are told of events until they say that they want none.

A command is done when its `;` has come, and not before. Answers come in the order of the commands; `COMPLD` of what moves light comes when
that has settled, and a command that takes long is acknowledged first.
"""

from emulator.loop import Timer
from emulator.ocs.events import Event, Kind
from emulator.ocs.frontend import Turn, Wire
from emulator.ocs.matching import RefusedError
from emulator.ocs.store import Store
from emulator.ocs.tl1.alarms import Alarms
from emulator.ocs.tl1.done import RANKS, Done
from emulator.ocs.tl1.frames import Message, Stamp, acknowledged, autonomous, completed, denied, partly
from emulator.ocs.tl1.verbs import VERBS
from emulator.ocs.tl1.words import NO_TAG, Command, Commands, DeniedError, PartlyError, command


class Tl1:
    """The TL1 of one switch: its sessions, its alarms, the number of its last message."""

    name = "tl1"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.alarms = Alarms()
        self.sessions: set[Tl1Session] = set()
        self._told = 0
        store.subscribe(self._heard)

    def session(self, wire: Wire) -> "Tl1Session":
        session = Tl1Session(self, wire)
        self.sessions.add(session)
        return session

    def restarted(self) -> None:
        self._told = 0

    @property
    def stamp(self) -> Stamp:
        """The heading of what is said now."""
        return Stamp(self.store.system.name, self.store.wall_s())

    def numbered(self, message: Message) -> bytes:
        """A message with a number of its own, by which a client sees that it missed one."""
        self._told += 1
        return autonomous(self.stamp, self._told, message)

    def _heard(self, event: Event) -> None:
        if event.kind is Kind.SETTINGS and not event.ports:
            for session in self.sessions:
                session.watch()
        message = self.alarms.heard(event, self.store.wall_s())
        if message is None:
            return
        frame = self.numbered(message)
        for session in list(self.sessions):
            session.tell(frame)


class Tl1Session:
    """One client."""

    def __init__(self, switch: Tl1, wire: Wire) -> None:
        self._switch, self._wire = switch, wire
        self._manners = switch.store.profile.tl1
        self._commands = Commands()
        self.wants_messages = self._manners.messages
        self._number = 0
        self._heard_ns = switch.store.now_ns()
        self._silence: Timer | None = None
        self._waiting: dict[Turn, Timer | None] = {}
        self._is_gone = False

    @property
    def store(self) -> Store:
        """The switch."""
        return self._switch.store

    @property
    def alarms(self) -> Alarms:
        """Its alarms."""
        return self._switch.alarms

    @property
    def user(self) -> str | None:
        """Who is logged in: nobody any more, once an admin has ended the session."""
        log_in = self.store.users.log_ins.get(self._number)
        return log_in.user if log_in else None

    def heard(self, data: bytes) -> None:
        for text in self._commands.fed(data):
            if self._is_gone:
                return
            self._heard_ns = self.store.now_ns()
            self._read(text)

    def gone(self) -> None:
        self._is_gone = True
        self.log_out()
        for timer in self._waiting.values():
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self._switch.sessions.discard(self)

    def log_in(self, user: str) -> None:
        """Be that user from now on."""
        self.log_out()
        self._number = self.store.users.entered(user, self._switch.name, self._wire.peer, self._wire.close)
        self.watch()

    def log_out(self) -> None:
        """Be nobody."""
        self.store.users.left(self._number)
        self.watch()

    def tell(self, frame: bytes) -> None:
        """Send an autonomous message, if it is wanted."""
        if self.wants_messages and (self.user is not None or not self._manners.login):
            self._wire.send(frame + self._manners.prompt.encode())

    # ---- commands

    def _read(self, text: str | None) -> None:
        if text is None:
            self._wire.turn().say(acknowledged("NG", NO_TAG))
            return
        try:
            asked = command(text)
        except DeniedError as wrong:
            self._say(self._wire.turn(), denied(self._switch.stamp, wrong.ctag, wrong.code, wrong.text))
            return
        if asked is None:
            return
        if len(self._waiting) >= self._manners.outstanding:
            self._wire.send(acknowledged("RL", asked.ctag))
            return
        self._answer(asked, self._wire.turn())

    def _answer(self, asked: Command, turn: Turn) -> None:
        codes = self._manners.codes
        try:
            done = self._done(asked)
        except PartlyError as half:
            self._say(turn, partly(self._switch.stamp, asked.ctag, half.code, half.lines, half.text))
        except DeniedError as wrong:
            self._say(turn, denied(self._switch.stamp, asked.ctag, wrong.code, wrong.text))
        except RefusedError as refused:
            self._say(turn, denied(self._switch.stamp, asked.ctag, codes[refused.kind.value], str(refused)))
        else:
            if done.settles and self._manners.completes == "settled":
                self._wait(turn, asked, done)
            else:
                self._complete(turn, asked, done)

    def _done(self, asked: Command) -> Done:
        """Do it. DeniedError or RefusedError if it can't or mustn't be."""
        codes, login = self._manners.codes, self._manners.login
        verb = VERBS.get(asked.verb)
        if self.user is None and login and (verb is None or verb.needs_login):
            raise DeniedError(codes["not logged in"], "Not logged in")
        if verb is None:
            raise DeniedError(codes["no such command"], f"Unknown command {asked.verb}")
        if asked.tid not in ("", self.store.system.name):
            raise DeniedError("IITA", "Mismatched TID")
        if asked.words(0):
            raise DeniedError("INUP", "Unexpected parameter in block 0")
        if self.user is not None and RANKS[self.store.users.group(self.user)] < RANKS[verb.least]:
            raise DeniedError("PICC", "Permission denied")
        return verb.execute(self, asked)

    def _wait(self, turn: Turn, asked: Command, done: Done) -> None:
        """Complete a command once all light has settled; acknowledge it before, if that takes long."""
        store = self.store
        self._waiting[turn] = None

        def settled() -> None:
            if turn in self._waiting:
                timer = self._waiting.pop(turn)
                if timer is not None:
                    timer.cancel()
                self._heard_ns = store.now_ns()
                self._complete(turn, asked, done)

        store.when_settled(settled)
        if turn in self._waiting:
            slow = acknowledged(self._manners.slow_ack, asked.ctag)
            due_ns = store.now_ns() + round(self._manners.slow_s * 1e9)
            self._waiting[turn] = store.timers.at(due_ns, lambda: self._wire.send(slow))

    def _complete(self, turn: Turn, asked: Command, done: Done) -> None:
        self._say(turn, completed(self._switch.stamp, asked.ctag, done.lines, done.remark))

    def _say(self, turn: Turn, frame: bytes) -> None:
        turn.say(frame + self._manners.prompt.encode())

    # ---- silence

    def watch(self) -> None:
        """Wait for this session to be silent too long."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        limit_ns = self._limit_ns()
        if limit_ns:
            due_ns = max(self._heard_ns + limit_ns, self.store.now_ns())
            self._silence = self.store.timers.at(due_ns, self._was_silent)

    def _limit_ns(self) -> int:
        if self.user is None:
            return 0
        is_admin = self.store.users.group(self.user) == "admin"
        system = self.store.system
        return (system.session_timeout_s if is_admin else system.user_timeout_s) * 1_000_000_000

    def _was_silent(self) -> None:
        self._silence = None
        if self._waiting or self.store.now_ns() < self._heard_ns + self._limit_ns():
            self._heard_ns = max(self._heard_ns, self.store.now_ns() if self._waiting else 0)
            self.watch()
            return
        said = Message("A ", "CANC", (f'"{self.user}"',))
        self._wire.send(self._switch.numbered(said) + self._manners.prompt.encode())
        self.log_out()
        if self._manners.timed_out == "hang up":
            self._wire.close()
