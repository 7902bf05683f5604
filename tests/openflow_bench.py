"""A switch of ours at its agent, with a controller's ear: what the contracts of OpenFlow are examined on."""

import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from emulator.switch.agent import Agent
from emulator.switch.errors import FlowError
from emulator.switch.flow import Flow, Group
from emulator.switch.memory import MemoryDatapath
from emulator.switch.openflow_ports import Interface, MemoryInterfaces, PortCount
from emulator.switch.openflow_switch import Switch
from emulator.switch.seam import Port
from tests.openflow_lab import PATIENCE_S, Peer, serving

DPID = 0x5EED
PORTS = (Port(1, "a"), Port(2, "b"), Port(3, "c"))
TO_B = {"eth_type": 0x0800, "ipv4_dst": ("10.0.0.0", "255.0.0.0")}


class Watched(MemoryDatapath):
    """A datapath in memory that has room for `room` flows, and remembers how many each load gave it."""

    def __init__(self, room: int = 1 << 16) -> None:
        super().__init__(PORTS)
        self.loads, self._room = list[int](), room

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        if len(flows) > self._room:
            raise FlowError(f"{flows[-1]}: no room")
        super().load(flows, groups)
        self.loads.append(len(flows))


@dataclass
class Bench:
    """One switch, its agent at work, and the controller's ear."""

    datapath: Watched
    interfaces: MemoryInterfaces
    listener: socket.socket
    undo: ExitStack
    door: Path

    def accept(self) -> Peer:
        return Peer(self.undo.enter_context(self.listener.accept()[0]))

    def guest(self) -> Peer:
        """A tool at the switch's own door, greeted."""
        sock = self.undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.connect(str(self.door))
        peer = Peer(sock)
        assert peer.greet().datapath_id == DPID
        return peer

    def greeted(self) -> Peer:
        peer = self.accept()
        assert peer.greet().datapath_id == DPID
        return peer


def bench_of(datapath: Watched, undo: ExitStack) -> Bench:
    listener = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.settimeout(PATIENCE_S)
    interfaces = MemoryInterfaces({"a": Interface(True, bytes(5) + b"\7", PortCount(5, 6, 500, 600))})
    undo.callback(interfaces.close)
    undo.callback(datapath.close)
    agent = Agent(interfaces)
    door = Path(undo.enter_context(tempfile.TemporaryDirectory())) / "s0.mgmt"
    agent.add("s0", Switch(DPID, datapath, interfaces, time.monotonic_ns()), door)
    agent.connect({"s0": listener.getsockname()[:2]})
    undo.enter_context(serving(agent))
    return Bench(datapath, interfaces, listener, undo, door)


def frame(dscp: int = 0, to: str = "10.0.0.2") -> bytes:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, dscp << 2, 28, 0, 0, 64, 17, 0, bytes(4), socket.inet_aton(to))
    return bytes(12) + b"\x08\0" + ip + struct.pack("!HHHH", 7, 9, 8, 0)
