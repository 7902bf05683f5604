"""Random rules and random packets: the switch in memory, the one in the kernel and Open vSwitch send the same frames out of the same ports."""

import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from emulator.ovs import Bridge
from emulator.switch import openflow_actions, openflow_match
from emulator.switch.agent import Agent
from emulator.switch.flow import ALL, CONTROLLER, IN_PORT, Action, Output, SetField, ToGroup
from emulator.switch.match import Match
from emulator.switch.memory import MemoryDatapath
from emulator.switch.openflow_groups import KINDS
from emulator.switch.openflow_numbers import ANY_GROUP, NO_BUFFER, PortNumber
from emulator.switch.openflow_ports import MemoryInterfaces
from emulator.switch.openflow_switch import Switch
from emulator.switch.packet import IPV4, VLAN_TAGS, WIDTHS
from emulator.switch.seam import Port
from tests import switch_frames
from tests.kernel.switch_bench import AUXILIARY_BYTES, PACKET_AUXDATA, SOL_PACKET, tagged_again
from tests.namespaces import must
from tests.openflow_lab import DATAPATH, PATIENCE_S, Peer, flow_mod, serving
from tests.switch_processes import Door, open_vswitch, own_network, wire

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

pytestmark = [pytest.mark.kernel, pytest.mark.ovs]

PORTS = (1, 2, 3)
TO_CONTROLLER = 0
ETH_P_ALL, PACKET_OUTGOING = 0x0003, 4
LAST = b"\xff" * 6 + bytes(6) + b"\x88\xb5"
"""The beginning of a frame that says that all before it have been dealt with: of an EtherType kept for experiments (IEEE 802)."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""What differs isn't made smaller: each try waits seconds for frames that don't come."""
Dress = tuple[SetField, ...]
Left = Counter[tuple[int, bytes]]
"""Frames that have left a switch, by the port they left by."""


# --- rules and packets ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    table: int
    match: Match
    apply: tuple[Action, ...]
    write: tuple[Action, ...]
    goto: bool

    def wire(self, priority: int) -> bytes:
        """As a flow-mod; no two rules of one priority, so that OpenFlow says which takes a packet."""
        told = b"".join(
            struct.pack("!HH4x", kind, 8 + len(done)) + done
            for kind, actions in ((4, self.apply), (3, self.write))
            if (done := openflow_actions.encoded(actions))
        )
        told += struct.pack("!HHB3x", 1, 8, 1) if self.goto and self.table == 0 else b""
        head = struct.pack(
            "!QQBBHHHIIIH2x", 0, 0, self.table, 0, 0, 0, priority, NO_BUFFER, PortNumber.ANY, ANY_GROUP, 0
        )
        body = head + openflow_match.encoded(self.match) + told
        return struct.pack("!BBHI", 4, of.OFPT_FLOW_MOD, 8 + len(body), 1) + body


REST_OF_TABLE_1 = Rule(1, Match(), (), (), goto=False)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    found = draw(switch_frames.matches())
    # OpenFlow has no masks for these.
    exact = {
        name: (value, (1 << WIDTHS[name]) - 1 if name in {"ip_dscp", "tp_src", "tp_dst"} else mask)
        for name, (value, mask) in found.masked.items()
    }
    match = Match(**exact)
    choice: list[Action] = [Output(port) for port in (*PORTS, IN_PORT, ALL, CONTROLLER)]
    choice += [ToGroup(1), ToGroup(2)]
    choice += [SetField(name, mac) for name in ("eth_dst", "eth_src") for mac in switch_frames.MACS[:2]]
    choice += [SetField("ip_dscp", value) for value in (0, 7, 63) if match.eth_type == (IPV4, 0xFFFF)]
    actions = st.lists(st.sampled_from(choice), max_size=3)
    apply, write = tuple(draw(actions)), tuple(draw(actions))
    return Rule(draw(st.integers(0, 1)), match, apply, write, draw(st.booleans()))


@st.composite
def groups(draw: st.DrawFn) -> tuple[int, tuple[tuple[int, tuple[Action, ...]], ...]]:
    """Kind and buckets (watched port, actions). A select group has one bucket: switches are free to share out as they like."""
    kind = draw(st.sampled_from(range(len(KINDS))))
    outputs = [*(Output(port) for port in PORTS), Output(IN_PORT)]
    dresses: list[Dress] = [(), *((SetField("eth_dst", mac),) for mac in switch_frames.MACS)]

    def bucket() -> tuple[int, tuple[Action, ...]]:
        dress = draw(st.sampled_from(dresses))
        return draw(st.sampled_from(PORTS)), (*dress, draw(st.sampled_from(outputs)))

    return kind, tuple(bucket() for _ in range(draw(st.integers(1, 3 if kind in {0, 3} else 1))))


def group_mod(number: int, kind: int, buckets: Sequence[tuple[int, tuple[Action, ...]]]) -> bytes:
    told = b""
    for watched, actions in buckets:
        done = openflow_actions.encoded(actions)
        watch = watched if kind == of.OFPGT_FF else of.OFPP_ANY
        told += struct.pack("!HHII4x", 16 + len(done), kind == of.OFPGT_SELECT, watch, of.OFPG_ANY) + done
    body = struct.pack("!HBxI", of.OFPGC_ADD, kind, number) + told
    return struct.pack("!BBHI", 4, of.OFPT_GROUP_MOD, 8 + len(body), 1) + body


def numbered(frame: bytes, number: int) -> bytes:
    """The frame with a number behind its packet, by which it is known again."""
    return frame + struct.pack("!I", number)


def _is_whole(frame: bytes) -> bool:
    """Whether every switch reads the same of it: Open vSwitch looks behind one tag, and sees no IPv4 in a packet that is cut short."""
    twice = all(int.from_bytes(frame[at : at + 2]) in VLAN_TAGS for at in (12, 16))
    return len(frame) > 40 and not twice


def _ends_open_vswitch(told: Sequence[Rule], kinds: Mapping[int, int]) -> bool:
    """Whether Open vSwitch 3.1 dies of these rules: of a select group that is applied while an action set waits.

    It works the group out anew for each packet's hash, keeps what is still to be done until then, and counts on the waiting
    action set being no longer than that ("assertion state->action_set_len <= state->ofpacts_len", in ofproto-dpif-rid.c).
    """
    waits = any(rule.write for rule in told if rule.table == 0 and rule.goto)
    applied = [action for rule in told if rule.table == 1 for action in rule.apply]
    return waits and any(isinstance(one, ToGroup) and kinds[one.id] == of.OFPGT_SELECT for one in applied)


packets = st.lists(st.tuples(st.sampled_from(PORTS), switch_frames.frames().filter(_is_whole)), max_size=8)


# --- switches ------------------------------------------------------------------------------------------------------------


class Judge:
    """Tells a switch rules by OpenFlow at its own door, and hears the packets that it sends to a controller."""

    def __init__(self, path: Path, undo: ExitStack) -> None:
        sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.connect(str(path))
        self.peer = Peer(sock)
        self.peer.greet()
        self.peer.after(parser.OFPSetAsync(DATAPATH, [0b11, 0b11], [0, 0], [0, 0]))

    def tell(self, messages: Sequence[bytes]) -> bool:
        """Have the switch follow these and no others; whether it has room for them."""
        # Flows first: Open vSwitch 3.1 dies of the deletion of a group that a flow names twice.
        every = parser.OFPGroupMod(DATAPATH, of.OFPGC_DELETE, of.OFPGT_ALL, of.OFPG_ALL, [])
        assert self.peer.after(flow_mod(command=of.OFPFC_DELETE, table_id=of.OFPTT_ALL), every) == []
        self.peer.sock.sendall(b"".join(messages))
        everywhere = (of.OFPP_ALL, of.OFPP_IN_PORT, of.OFPP_CONTROLLER)
        last = [parser.OFPActionOutput(port, of.OFPCML_NO_BUFFER) for port in everywhere]
        refused = self.peer.after(flow_mod(0xFFFF, last, parser.OFPMatch(eth_type=0x88B5)))
        full = (of.OFPET_FLOW_MOD_FAILED, of.OFPFMFC_TABLE_FULL)
        assert all((error.type, error.code) == full for error in refused), refused
        return not refused

    def punted(self, last: int) -> Left:
        """What has come to the controller, until the last frame has come by so many ports."""
        found = Left()
        while last:
            heard = self.peer.hear()
            assert heard.msg_type == of.OFPT_PACKET_IN, heard
            if heard.data.startswith(LAST):
                last -= 1
            else:
                found[TO_CONTROLLER, bytes(heard.data)] += 1
        return found


class InMemory:
    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self.datapath = MemoryDatapath(Port(number, f"m{number}") for number in PORTS)
        interfaces = MemoryInterfaces()
        agent = Agent(interfaces)
        agent.add("m0", Switch(9, self.datapath, interfaces, time.monotonic_ns()), folder / "m0.mgmt")
        undo.enter_context(serving(agent))
        self.judge = Judge(folder / "m0.mgmt", undo)

    def tell(self, messages: Sequence[bytes]) -> bool:
        return self.judge.tell(messages)

    def left(self, sent: Sequence[tuple[int, bytes]]) -> Left:
        found = Left(out for port, frame in sent for out in self.datapath.forward(port, frame))
        for port in PORTS:
            self.datapath.forward(port, LAST + bytes(46))
        return found + self.judge.punted(len(PORTS))


class OnWires:
    """A switch whose ports are interfaces `NAME1`..., each with a far end that hears and sends."""

    def __init__(self, name: str, door: Path, undo: ExitStack) -> None:
        self.judge = Judge(door, undo)
        self.ends = {port: undo.enter_context(_raw(f"{name}{port}e")) for port in PORTS}

    def tell(self, messages: Sequence[bytes]) -> bool:
        return self.judge.tell(messages)

    def left(self, sent: Sequence[tuple[int, bytes]]) -> Left:
        """Twice: of frames that come together, Open vSwitch does those of one flow after all others, the last ones too."""
        return self._left(sent) + self._left(())

    def _left(self, sent: Sequence[tuple[int, bytes]]) -> Left:
        for port, frame in (*sent, *((port, LAST + bytes(46)) for port in PORTS)):
            self.ends[port].send(frame)
        found, lasts = Left(), dict.fromkeys(PORTS, 0)
        soon = time.monotonic() + PATIENCE_S
        while any(seen < len(PORTS) for seen in lasts.values()):
            ready, _, _ = select.select(list(self.ends.values()), [], [], max(0, soon - time.monotonic()))
            assert ready, f"the last frames reached ports {lasts}"
            for port, end in self.ends.items():
                while frame := _heard(end):
                    if frame.startswith(LAST):
                        lasts[port] += 1
                    else:
                        found[port, frame] += 1
        return found + self.judge.punted(len(PORTS))


class OnOvs(OnWires):
    """Open vSwitch answers a barrier some milliseconds before its packets meet the change, unless it forgets what it has worked out."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        super().__init__("o", folder / "o0.mgmt", undo)
        (self._control,) = folder.glob("ovs-vswitchd.*.ctl")

    def tell(self, messages: Sequence[bytes]) -> bool:
        has_room = super().tell(messages)
        must("ovs-appctl", "-t", str(self._control), "revalidator/purge")
        return has_room


def _raw(interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.bind((interface, ETH_P_ALL))
    sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    sock.setblocking(False)
    return sock


def _heard(sock: socket.socket) -> bytes:
    """The next frame; empty if there is none."""
    while True:
        try:
            frame, told, _, (_, _, kind, *_) = sock.recvmsg(4096, AUXILIARY_BYTES)
        except BlockingIOError:
            return b""
        if kind != PACKET_OUTGOING:
            return tagged_again(frame, told[0][2])


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    folder = tmp_path_factory.mktemp("alike")
    with own_network(), ExitStack() as undo:
        for name in "bo":
            for port in PORTS:
                wire(f"{name}{port}", f"{name}{port}e")
        Door([{"name": "b0", "datapath_id": 7, "ports": {port: f"b{port}" for port in PORTS}}], folder, undo)
        bridge = Bridge("o0", 8, tuple((f"o{port}", port) for port in PORTS))
        open_vswitch([bridge], folder / "ovs", undo)
        yield {
            "memory": InMemory(folder, undo),
            "bpf": OnWires("b", folder / "b0.mgmt", undo),
            "ovs": OnOvs(folder / "ovs", undo),
        }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], phases=PHASES)
@given(st.lists(rules(), max_size=8), groups(), groups(), packets)
def test_the_same_frames_leave_by_the_same_ports(
    switches: Mapping[str, Any],
    told: list[Rule],
    one: tuple[int, Any],
    two: tuple[int, Any],
    sent: list[tuple[int, bytes]],
) -> None:
    messages = [group_mod(1, *one), group_mod(2, *two)]
    # Where nothing in table 1 takes a packet, Open vSwitch does its action set all the same, and OpenFlow drops it (1.3.5, 5.4).
    messages += [rule.wire(priority) for priority, rule in enumerate([REST_OF_TABLE_1, *told])]
    frames = [(port, numbered(frame, number)) for number, (port, frame) in enumerate(sent)]
    left = dict[str, Left]()
    for name, switch in switches.items():
        if name == "ovs" and _ends_open_vswitch(told, {1: one[0], 2: two[0]}):
            continue
        has_room = switch.tell(messages)
        assert has_room or name == "bpf"
        assume(has_room)  # its flows have STEPS steps at most, and two tables may make more
        left[name] = switch.left(frames)
    assert left["bpf"] == left["memory"]
    assert left.get("ovs", left["memory"]) == left["memory"]
