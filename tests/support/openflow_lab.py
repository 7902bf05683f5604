"""A controller's end of an OpenFlow connection, with the framework's codec on a plain socket."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moefabric.controller.southbound.openflow import framework
from moefabric.emulator.openflow_switch.agent.agent import OpenFlowAgent

of = framework.module("ofproto.ofproto_v1_3")
parser = framework.module("ofproto.ofproto_v1_3_parser")
ofproto_parser = framework.module("ofproto.ofproto_parser")

TIMEOUT_S = 30.0
DATAPATH = framework.module("ofproto.ofproto_protocol").ProtocolDesc(of.OFP_VERSION)


class Peer:
    """The controller's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(TIMEOUT_S)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self._partial, self._xid = sock, b"", 0

    def greet(self) -> Any:
        """Exchanges hellos, and returns the features reply."""
        assert self.receive().msg_type == of.OFPT_HELLO
        self.send(parser.OFPHello(DATAPATH))
        return self.ask(parser.OFPFeaturesRequest(DATAPATH))

    def encode(self, message: Any) -> bytes:
        """The message as bytes with the next transaction number."""
        self._xid += 1
        message.xid = None
        message.set_xid(self._xid)
        message.serialize()
        return bytes(message.buf)

    def send(self, *messages: Any) -> None:
        self.sock.sendall(b"".join(map(self.encode, messages)))

    def receive(self) -> Any:
        """Receives the next message; raises TimeoutError or ConnectionError."""
        while (
            len(self._partial) < 8
            or len(self._partial) < struct.unpack_from("!H", self._partial, 2)[0]
        ):
            received = self.sock.recv(1 << 16)
            if not received:
                raise ConnectionError("the switch has hung up")
            self._partial += received
        version, kind, length, xid = struct.unpack_from("!BBHI", self._partial)
        wire, self._partial = self._partial[:length], self._partial[length:]
        return ofproto_parser.msg(DATAPATH, version, kind, length, xid, wire)

    def ask(self, message: Any) -> Any:
        """Sends a request, and returns the next message."""
        self.send(message)
        return self.receive()

    def after(self, *messages: Any) -> list[Any]:
        """Sends messages and a barrier, and returns all messages before the barrier reply."""
        self.send(*messages, parser.OFPBarrierRequest(DATAPATH))
        barrier, messages_before = self._xid, []
        while not (
            (reply := self.receive()).msg_type == of.OFPT_BARRIER_REPLY and reply.xid == barrier
        ):
            messages_before.append(reply)
        return messages_before

    def statistics(self, request: Any) -> list[Any]:
        """Sends a request, and returns the bodies of all its replies."""
        self.send(request)
        return self.statistics_reply()

    def statistics_reply(self) -> list[Any]:
        """Receives the bodies of all replies to one request."""
        bodies, more = [], True
        while more:
            reply = self.receive()
            assert reply.msg_type == of.OFPT_MULTIPART_REPLY, reply
            bodies += reply.body if isinstance(reply.body, list) else [reply.body]
            more = bool(reply.flags & of.OFPMPF_REPLY_MORE)
        return bodies


@contextmanager
def serving(agent: OpenFlowAgent) -> Iterator[None]:
    """Runs the agent in a thread, and raises its faults at the end."""
    stop, stopper = socket.socketpair()
    faults = list[BaseException]()

    def serve() -> None:
        try:
            agent.watch(stop.fileno(), agent.stop)
            agent.serve()
        except BaseException as fault:  # noqa: BLE001 - raised in the test's thread
            faults.append(fault)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stopper.close()
        thread.join(10)
        stop.close()
        agent.close()
    assert not faults, faults


def flow_mod(priority: int = 1, actions: Any = (), match: Any = None, **fields: Any) -> Any:
    """A flow-mod that adds an entry, unless `fields` say otherwise."""
    fields = {"out_port": of.OFPP_ANY, "out_group": of.OFPG_ANY, **fields}
    instructions = fields.pop("instructions", None)
    if instructions is None:
        instructions = (
            [parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, list(actions))] if actions else []
        )
    return parser.OFPFlowMod(
        DATAPATH,
        priority=priority,
        match=match or parser.OFPMatch(),
        instructions=instructions,
        **fields,
    )


def output(port: int) -> Any:
    return parser.OFPActionOutput(port, of.OFPCML_NO_BUFFER)


def flows_request(**fields: Any) -> Any:
    anything = {"table_id": of.OFPTT_ALL, "out_port": of.OFPP_ANY, "out_group": of.OFPG_ANY}
    return parser.OFPFlowStatsRequest(DATAPATH, **{**anything, **fields})
