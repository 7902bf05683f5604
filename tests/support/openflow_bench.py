"""A switch in memory, its running agent, and a listener in place of its controller."""

import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from moefabric.core.openflow.match import FlowError
from moefabric.emulator.openflow_switch.agent.agent import OpenFlowAgent
from moefabric.emulator.openflow_switch.agent.interfaces import Interface
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Flow, Group, Port
from tests.support.memory_datapath import MemoryDatapath, MemoryInterfaces
from tests.support.openflow_lab import TIMEOUT_S, Peer, serving
from tests.support.switch_frames import ipv4

DPID = 0x5EED
PORTS = (Port(1, "a"), Port(2, "b"), Port(3, "c"))
TO_B = {"eth_type": 0x0800, "ipv4_dst": ("10.0.0.0", "255.0.0.0")}


class RecordingDatapath(MemoryDatapath):
    """A datapath in memory for `room` flows that records the number of flows of each load."""

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
    """A switch whose agent is running, and the listener of its controller."""

    datapath: RecordingDatapath
    interfaces: MemoryInterfaces
    listener: socket.socket
    undo: ExitStack
    management: Path

    def accept(self) -> Peer:
        return Peer(self.undo.enter_context(self.listener.accept()[0]))

    def connect_tool(self) -> Peer:
        """Connects a tool to the management socket."""
        sock = self.undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.connect(str(self.management))
        peer = Peer(sock)
        assert peer.greet().datapath_id == DPID
        return peer

    def greeted(self) -> Peer:
        peer = self.accept()
        assert peer.greet().datapath_id == DPID
        return peer


def bench_of(datapath: RecordingDatapath, undo: ExitStack) -> Bench:
    listener = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.settimeout(TIMEOUT_S)
    interfaces = MemoryInterfaces(
        {"a": Interface(True, bytes(5) + b"\7", (5, 6, 500, 600, 0, 0, 0, 0))}
    )
    undo.callback(interfaces.close)
    undo.callback(datapath.close)
    agent = OpenFlowAgent(interfaces)
    management = Path(undo.enter_context(tempfile.TemporaryDirectory())) / "s0.mgmt"
    agent.add("s0", OpenFlowSwitch(DPID, datapath, interfaces, time.monotonic_ns()), management)
    agent.connect({"s0": listener.getsockname()[:2]})
    undo.enter_context(serving(agent))
    return Bench(datapath, interfaces, listener, undo, management)


def frame(dscp: int = 0, to: str = "10.0.0.2") -> bytes:
    address = int(IPv4Address(to))
    return ipv4(src=0, dst=address, dscp=dscp, ports=(7, 9), payload=b"", eth=(0, 0))
