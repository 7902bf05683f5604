"""One switch's side of one connection to a controller: what it hears, and what it says to that (OpenFlow 1.3.5, sections 6 and 7).

Nothing here waits or sends: bytes and time come in, bytes are kept until they are taken.

All changes of tables and groups between two barriers are one flip of the datapath: they are gathered, and done together when the controller asks for a
barrier, or for anything that they bear on, or is silent for `GATHER_NS`. No packet sees a part of them. So a divert or an admit, which is some flow-mods
and a barrier, needs no bundle (a bundle is an extension to OpenFlow 1.3, and Ryu has none).
"""

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from emulator.switch import messages, written
from emulator.switch.errors import FlowError
from emulator.switch.flow import ToGroup
from emulator.switch.messages import Message
from emulator.switch.openflow_actions import ToTable
from emulator.switch.openflow_lacking import check_configuration, queues
from emulator.switch.openflow_news import News
from emulator.switch.openflow_numbers import VERSION, Multipart, OpenFlowError, Refusal, Role, Type
from emulator.switch.openflow_requests import multipart_bodies
from emulator.switch.openflow_settings import Settings
from emulator.switch.openflow_switch import Arrival, Departure, Mod, Switch
from emulator.switch.seam import Port
from moefabric.errors import FabricError

log = logging.getLogger(__name__)

NEVER: Final = 1 << 63
GATHER_NS: Final = 20_000_000
"""So long after the last change without a barrier all of them are done, though the controller speaks of other things."""
HALF_HEARD_NS: Final = 500_000_000
"""How long changes wait for the rest of a message that has begun, and for other changes at most."""
GATHERED: Final = 16384
"""So many changes are done at once, barrier or not."""
ECHO_NS: Final = 5_000_000_000
"""A controller that is silent for so long is asked whether it lives, and given up after as long again."""
UNSENT_BYTES: Final = 1 << 20
"""Packets for a controller that doesn't read are lost beyond this; replies are not."""


class Conversation:
    """From the first hello until `over`. Until it is closed it is one of the switch's listeners."""

    def __init__(self, switch: Switch, now_ns: int, *, guest: bool = False) -> None:
        """A `guest` is told what it asks for, and of packets, ports and entries' ends only if it has asked for those (set-async)."""
        self.switch, self.over = switch, False
        self._news, self._guest = News(wanted=not guest), guest
        self._settings = Settings(switch, self._news)
        self._unread, self._unsaid = b"", bytearray(written.hello(1))
        self._told = deque[Message]()
        self._greeted, self._asked_alive, self._waited = False, False, False
        self._now_ns = self._heard_ns = now_ns
        self._gathered = list[tuple[Message, Mod]]()
        self._first_ns = self._gathered_ns = 0
        self._xid = 1
        self._answers: Mapping[int, Callable[[Message], None]] = {
            Type.HELLO: self._ignore,
            Type.ERROR: self._ignore,
            Type.ECHO_REPLY: self._ignore,
            Type.ECHO_REQUEST: self._echo,
            Type.EXPERIMENTER: self._experimenter,
            Type.PACKET_OUT: self._packet_out,
            Type.FLOW_MOD: self._mod,
            Type.GROUP_MOD: self._mod,
            Type.MULTIPART_REQUEST: self._multipart,
            Type.BARRIER_REQUEST: self._barrier,
            **dict.fromkeys(self._settings.answers, self._set),
            **dict.fromkeys((Type.PORT_MOD, Type.TABLE_MOD, Type.METER_MOD), self._configure),
            Type.QUEUE_GET_CONFIG_REQUEST: self._queues,
        }
        switch.listeners.append(self)

    def close(self) -> None:
        """Do what is gathered, then hear and tell nothing any more. Twice is no fault."""
        try:
            self._finish()
        except FabricError as fault:
            log.error("not done", extra={"why": str(fault)})  # noqa: TRY400 - the reason says it all
        self.over = True
        if self in self.switch.listeners:
            self.switch.listeners.remove(self)

    # --- bytes ---------------------------------------------------------------------------------------------------------

    def hear(self, heard: bytes, now_ns: int) -> None:
        """Take bytes that have come, in whatever pieces."""
        self._now_ns = self._heard_ns = now_ns
        self._asked_alive = False
        try:
            told, self._unread = messages.split(self._unread + heard if self._unread else heard)
        except OpenFlowError as error:
            log.warning("what comes is no OpenFlow", extra={"why": str(error)})
            self.over = True
            return
        self._told.extend(told)
        self._work(now_ns)

    def _work(self, now_ns: int) -> None:
        """Answer what has been heard, until more is to be sent than is kept for the other side."""
        self._now_ns = now_ns
        while self._told and not self.over and self.unsaid < UNSENT_BYTES:
            self._do(self._told.popleft())

    @property
    def listens(self) -> bool:
        """Whether it would hear more: not while the other side doesn't take what has been said to it."""
        return not self._told and self.unsaid < UNSENT_BYTES

    def take(self, send: Callable[[bytearray], int], now_ns: int) -> None:
        """Hand `send` what is to be sent; it says how much of it has gone. Who takes what had to wait is alive, if silent."""
        if not self.unsaid:
            return
        gone = send(self._unsaid)
        del self._unsaid[:gone]
        if gone and self._waited:
            self._heard_ns, self._asked_alive = now_ns, False
        self._waited = bool(self._unsaid)
        if self._told and gone:
            self._work(now_ns)

    @property
    def unsaid(self) -> int:
        """How many bytes wait to be taken."""
        return len(self._unsaid)

    def say(self) -> bytes:
        """Take all the bytes that are to be sent."""
        said = bytes(self._unsaid)
        self._unsaid.clear()
        return said

    def _say(self, *said: bytes) -> None:
        for message in said:
            self._unsaid += message

    # --- time ----------------------------------------------------------------------------------------------------------

    @property
    def due_ns(self) -> int:
        """When `tick` has something to do if nothing is heard until then."""
        if self._gathered:
            patience_ns = HALF_HEARD_NS if self._unread or self._told else GATHER_NS
            return min(self._gathered_ns + patience_ns, self._first_ns + HALF_HEARD_NS)
        if self._guest:
            return NEVER  # a Unix socket tells by itself that its other end is gone
        return self._heard_ns + ECHO_NS * (2 if self._asked_alive else 1)

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        if now_ns < self.due_ns:
            return
        self._now_ns = now_ns
        if self._gathered:
            self._finish()
        elif self._asked_alive or not self._greeted:
            log.warning("controller is silent", extra={"datapath": f"{self.switch.datapath_id:016x}"})
            self.over = True
        else:
            self._asked_alive = True
            self._say(written.message(Type.ECHO_REQUEST, self._next_xid()))

    def _next_xid(self) -> int:
        self._xid = self._xid % 0xFFFFFFFF + 1
        return self._xid

    # --- requests ------------------------------------------------------------------------------------------------------

    def _do(self, message: Message) -> None:
        """Answer one message, if only by an error."""
        if not self._greeted:
            self._greet(message)
            return
        try:
            self._answer(message)
        except OpenFlowError as error:
            self._refuse(message, error)
        except struct.error as error:
            self._refuse(message, OpenFlowError(Refusal.BAD_LEN, str(error)))
        except FlowError as error:  # a combination of fields that OpenFlow allows and the datapath doesn't
            self._refuse(message, OpenFlowError(Refusal.MATCH_BAD_VALUE, str(error)))
        except FabricError as error:  # the kernel doesn't say what was asked for
            log.error("not answered", extra={"why": str(error)})  # noqa: TRY400 - the reason says it all
            self._refuse(message, OpenFlowError(Refusal.REQUEST_NOT_PERMITTED, str(error)))

    def _answer(self, message: Message) -> None:
        if message.version != VERSION:
            raise OpenFlowError(Refusal.BAD_VERSION, f"version {message.version}")
        answer = self._answers.get(message.type)
        if answer is None:
            raise OpenFlowError(Refusal.BAD_TYPE, f"type {message.type}")
        answer(message)

    def _refuse(self, message: Message, error: OpenFlowError) -> None:
        log.info("refused", extra={"datapath": f"{self.switch.datapath_id:016x}", "why": str(error)})
        self._say(written.error(error.refusal, message))

    def _greet(self, message: Message) -> None:
        """The first message is a hello, and both sides speak OpenFlow 1.3 from then on, or part (6.3.1)."""
        if message.type == Type.HELLO and messages.speaks(message):
            self._greeted = True
            return
        self._say(written.incompatible(message.xid))
        self.over = True

    def _ignore(self, message: Message) -> None:
        """A hello after the first, an echo's reply, a controller's error: nothing is to be said to these."""

    def _echo(self, message: Message) -> None:
        self._say(written.message(Type.ECHO_REPLY, message.xid, message.body))

    def _experimenter(self, message: Message) -> None:
        raise OpenFlowError(Refusal.BAD_EXPERIMENTER, f"message {message.xid}")

    def _set(self, message: Message) -> None:
        self._say(self._settings.answers[message.type](message))

    def _barrier(self, message: Message) -> None:
        messages.alone(message)
        self._finish()
        self._say(written.message(Type.BARRIER_REPLY, message.xid))

    def _mod(self, message: Message) -> None:
        self._not_as_slave()
        read = messages.flow_mod if message.type == Type.FLOW_MOD else messages.group_mod
        change = message, read(message)
        if not self._gathered:
            self._first_ns = self._now_ns
        self._gathered_ns = self._now_ns
        self._gathered.append(change)
        if len(self._gathered) >= GATHERED:
            self._finish()

    def _not_as_slave(self) -> None:
        if self._news.role is Role.SLAVE:
            raise OpenFlowError(Refusal.IS_SLAVE)

    def finish(self, now_ns: int) -> None:
        """Do all that is gathered, since somebody looks."""
        self._now_ns = now_ns
        if self._gathered:
            self._finish()

    def _finish(self) -> None:
        """Do all that is gathered; the datapath has it when this returns."""
        gathered, self._gathered = self._gathered, []
        done = self.switch.change([mod for _, mod in gathered], self._now_ns)
        for place, error in done.refused:
            self._refuse(gathered[place][0], error)
        for each in self.switch.listeners:
            each.tell_departures(done.departed, self._now_ns)

    def _packet_out(self, message: Message) -> None:
        self._not_as_slave()
        out = messages.packet_out(message)
        if any(isinstance(action, ToGroup | ToTable) for action in out.actions):
            self._finish()
        arrivals = self.switch.send(out)
        for each in self.switch.listeners:
            each.tell_arrivals(arrivals)

    def _configure(self, message: Message) -> None:
        self._not_as_slave()
        check_configuration(self.switch.ports, message)

    def _queues(self, message: Message) -> None:
        self._say(queues(self.switch.ports, message))

    def _multipart(self, message: Message) -> None:
        kind, more, body = messages.multipart(message)
        if more:
            raise OpenFlowError(Refusal.MULTIPART_BUFFER_OVERFLOW, "a request in several parts")
        for each in self.switch.listeners:
            each.finish(self._now_ns)
        bodies = multipart_bodies(self.switch, kind, body, self._now_ns)
        self._say(*written.parts(Multipart(kind), message.xid, bodies))

    # --- what the switch tells of its own accord -------------------------------------------------------------------------

    @property
    def _tells(self) -> bool:
        return self._greeted and not self.over

    def yield_to_master(self) -> None:
        """Another has become master: who was so is a slave now (6.3.6)."""
        if self._news.role is Role.MASTER:
            self._news.role = Role.SLAVE

    def tell_arrivals(self, arrivals: Iterable[Arrival]) -> None:
        """Packets for the controller; lost where it doesn't read those before."""
        for said in self._news.arrivals(arrivals) if self._tells else ():
            if self.unsaid <= UNSENT_BYTES:
                self._say(said)

    def tell_departures(self, departed: Iterable[Departure], now_ns: int) -> None:
        """Entries that are no more, to whom it was promised."""
        if self._tells:
            self._say(*self._news.departures(departed, now_ns))

    def tell_port(self, port: Port) -> None:
        """A port has carrier now, or none any more."""
        if self._tells:
            self._say(*self._news.port(self.switch, port))
