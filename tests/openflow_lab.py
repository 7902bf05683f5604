"""A controller's end of OpenFlow for tests: Ryu's own codec on a plain socket, so that a switch is judged by another's reading."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from controller.southbound.openflow import shim  # noqa: F401 - it has to come before Ryu

# isort: split
from ryu.ofproto import ofproto_parser
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser
from ryu.ofproto.ofproto_protocol import ProtocolDesc

from emulator.switch.agent import Agent

PATIENCE_S = 5.0
DATAPATH = ProtocolDesc(of.OFP_VERSION)


class Peer:
    """A connection that a switch has made, seen from the controller."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self._unread, self._xid = sock, b"", 0

    def greet(self) -> Any:
        """Exchange hellos and features, as Ryu does; the features."""
        assert self.hear().msg_type == of.OFPT_HELLO
        self.send(parser.OFPHello(DATAPATH))
        return self.ask(parser.OFPFeaturesRequest(DATAPATH))

    def write(self, message: Any) -> bytes:
        """The message's bytes, with the next transaction number."""
        self._xid += 1
        message.xid = None
        message.set_xid(self._xid)
        message.serialize()
        return bytes(message.buf)

    def send(self, *messages: Any) -> None:
        self.sock.sendall(b"".join(map(self.write, messages)))

    def hear(self) -> Any:
        """The next message, as Ryu reads it. TimeoutError if none comes, ConnectionError if the switch hangs up."""
        while len(self._unread) < 8 or len(self._unread) < struct.unpack_from("!H", self._unread, 2)[0]:
            heard = self.sock.recv(1 << 16)
            if not heard:
                raise ConnectionError("the switch has hung up")
            self._unread += heard
        version, kind, length, xid = struct.unpack_from("!BBHI", self._unread)
        wire, self._unread = self._unread[:length], self._unread[length:]
        return ofproto_parser.msg(DATAPATH, version, kind, length, xid, wire)

    def ask(self, message: Any) -> Any:
        """Send it; the next message that comes."""
        self.send(message)
        return self.hear()

    def after(self, *messages: Any) -> list[Any]:
        """Send these and a barrier; all that comes before its reply."""
        self.send(*messages, parser.OFPBarrierRequest(DATAPATH))
        barrier, said = self._xid, []
        while not ((heard := self.hear()).msg_type == of.OFPT_BARRIER_REPLY and heard.xid == barrier):
            said.append(heard)
        return said

    def statistics(self, request: Any) -> list[Any]:
        """Ask; all the bodies of all the replies."""
        self.send(request)
        return self.statistics_reply()

    def statistics_reply(self) -> list[Any]:
        """All the bodies of all the replies to the next request that is answered."""
        bodies, more = [], True
        while more:
            heard = self.hear()
            assert heard.msg_type == of.OFPT_MULTIPART_REPLY, heard
            bodies += heard.body if isinstance(heard.body, list) else [heard.body]
            more = bool(heard.flags & of.OFPMPF_REPLY_MORE)
        return bodies


@contextmanager
def serving(agent: Agent) -> Iterator[None]:
    """The agent at work in a thread of its own; a fault of it is one of the test's."""
    hear, say = socket.socketpair()
    faults = list[BaseException]()

    def work() -> None:
        try:
            agent.serve(hear)
        except BaseException as fault:  # noqa: BLE001 - told where the test can see it
            faults.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        say.close()
        thread.join(10)
        hear.close()
        agent.close()
    assert not faults, faults


def flow_mod(priority: int = 1, actions: Any = (), match: Any = None, **words: Any) -> Any:
    """A flow-mod that adds an entry, unless `words` say otherwise."""
    told: dict[str, Any] = {"out_port": of.OFPP_ANY, "out_group": of.OFPG_ANY, **words}
    instructions = told.pop("instructions", None)
    if instructions is None:
        instructions = (
            [parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, list(actions))] if actions else []
        )
    return parser.OFPFlowMod(
        DATAPATH, priority=priority, match=match or parser.OFPMatch(), instructions=instructions, **told
    )


def output(port: int) -> Any:
    return parser.OFPActionOutput(port, of.OFPCML_NO_BUFFER)


def flows_request(**words: Any) -> Any:
    told = {"table_id": of.OFPTT_ALL, "out_port": of.OFPP_ANY, "out_group": of.OFPG_ANY, **words}
    return parser.OFPFlowStatsRequest(DATAPATH, **told)
