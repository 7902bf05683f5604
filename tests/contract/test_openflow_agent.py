"""What a controller may expect of a switch of ours, over a real connection on loopback and in Ryu's own reading of OpenFlow 1.3."""

import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.switch.agent import Agent
from emulator.switch.errors import FlowError
from emulator.switch.flow import Flow, Group
from emulator.switch.memory import MemoryDatapath
from emulator.switch.openflow_ports import Interface, MemoryInterfaces, PortCount
from emulator.switch.openflow_switch import Switch
from emulator.switch.seam import Port
from tests.openflow_lab import DATAPATH, PATIENCE_S, Peer, flow_mod, flows_request, output, serving

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

DPID = 0x5EED
PORTS = (Port(1, "a"), Port(2, "b"), Port(3, "c"))


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


def _bench(undo: ExitStack, datapath: Watched) -> Bench:
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


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as undo:
        yield _bench(undo, Watched())


@pytest.fixture
def peer(bench: Bench) -> Peer:
    return bench.greeted()


def frame(dscp: int = 0, to: str = "10.0.0.2") -> bytes:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, dscp << 2, 28, 0, 0, 64, 17, 0, bytes(4), socket.inet_aton(to))
    return bytes(12) + b"\x08\0" + ip + struct.pack("!HHHH", 7, 9, 8, 0)


TO_B = {"eth_type": 0x0800, "ipv4_dst": ("10.0.0.0", "255.0.0.0")}


# --- the handshake -----------------------------------------------------------------------------------------------------


def test_a_switch_says_who_it_is_and_what_ports_it_has(peer: Peer) -> None:
    ports = peer.statistics(parser.OFPPortDescStatsRequest(DATAPATH, 0))
    assert [(port.port_no, port.name, port.hw_addr) for port in ports] == [
        (1, b"a", "00:00:00:00:00:07"),
        (2, b"b", "00:00:00:00:00:00"),
        (3, b"c", "00:00:00:00:00:00"),
    ]


@pytest.mark.parametrize(
    ("hello", "speaks"),
    [
        pytest.param(struct.pack("!BBHI", 4, 0, 8, 1), True, id="1.3"),
        pytest.param(struct.pack("!BBHI", 5, 0, 8, 1), True, id="1.4-which-can-speak-1.3"),
        pytest.param(struct.pack("!BBHIHHI", 6, 0, 16, 1, 1, 8, 0x70), True, id="a-bitmap-with-1.3"),
        pytest.param(struct.pack("!BBHIHHI", 6, 0, 16, 1, 1, 8, 0x60), False, id="a-bitmap-without-1.3"),
        pytest.param(struct.pack("!BBHI", 1, 0, 8, 1), False, id="1.0"),
    ],
)
def test_both_speak_openflow_13_or_part(bench: Bench, hello: bytes, speaks: bool) -> None:
    peer = bench.accept()
    peer.hear()
    peer.sock.sendall(hello)
    if speaks:
        assert peer.ask(parser.OFPFeaturesRequest(DATAPATH)).n_tables == 8
        return
    error = peer.hear()
    assert (error.type, error.code) == (of.OFPET_HELLO_FAILED, of.OFPHFC_INCOMPATIBLE)
    with pytest.raises(ConnectionError):
        peer.hear()


def test_an_echo_comes_back_as_it_went(peer: Peer) -> None:
    assert peer.ask(parser.OFPEchoRequest(DATAPATH, data=b"are you there?")).data == b"are you there?"


# --- rules -------------------------------------------------------------------------------------------------------------


def test_a_barrier_is_answered_when_packets_meet_the_change(bench: Bench, peer: Peer) -> None:
    assert peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B))) == []
    assert bench.datapath.forward(1, frame()) == [(2, frame())]
    assert peer.after(flow_mod(command=of.OFPFC_DELETE)) == []
    assert list(bench.datapath.forward(1, frame())) == []


def test_all_between_two_barriers_is_one_flip(bench: Bench, peer: Peer) -> None:
    before = len(bench.datapath.loads)
    mods = [flow_mod(priority, [output(2)], parser.OFPMatch(**TO_B)) for priority in range(1, 1001)]
    assert peer.after(*mods) == []
    assert bench.datapath.loads[before:] == [1000]


def test_a_change_without_a_barrier_is_done_all_the_same(bench: Bench, peer: Peer) -> None:
    peer.send(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    (flow,) = peer.statistics(flows_request())
    assert flow.priority == 10


def test_statistics_tell_the_entry_as_it_was_given_and_what_it_carried(bench: Bench, peer: Peer) -> None:
    match = parser.OFPMatch(**TO_B, ip_dscp=3, ip_proto=17, udp_dst=9)
    peer.after(flow_mod(10, [output(2)], match, cookie=0xC0FFEE, idle_timeout=60))
    bench.datapath.forward(1, frame(dscp=3))
    bench.datapath.forward(1, frame(dscp=3))
    (flow,) = peer.statistics(flows_request())
    assert (flow.priority, flow.cookie, flow.idle_timeout, flow.table_id) == (10, 0xC0FFEE, 60, 0)
    assert (flow.packet_count, flow.byte_count) == (2, 2 * len(frame()))
    assert dict(flow.match.items()) == dict(match.items())
    assert flow.instructions[0].actions[0].port == 2
    (total,) = peer.statistics(
        parser.OFPAggregateStatsRequest(DATAPATH, 0, 0, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch())
    )
    assert (total.packet_count, total.byte_count, total.flow_count) == (2, 2 * len(frame()), 1)


def test_statistics_that_fill_several_messages_arrive_whole(peer: Peer) -> None:
    peer.after(
        *(flow_mod(number, [output(2)], parser.OFPMatch(**TO_B), cookie=number) for number in range(1500))
    )
    assert sorted(flow.cookie for flow in peer.statistics(flows_request())) == list(range(1500))


def test_who_is_promised_word_of_an_entrys_end_gets_it_before_the_barrier(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B), cookie=7, flags=of.OFPFF_SEND_FLOW_REM))
    bench.datapath.forward(1, frame())
    (gone,) = peer.after(flow_mod(command=of.OFPFC_DELETE))
    assert (gone.msg_type, gone.cookie, gone.reason) == (of.OFPT_FLOW_REMOVED, 7, of.OFPRR_DELETE)
    assert (gone.packet_count, gone.byte_count) == (1, len(frame()))


def test_an_entry_goes_when_its_time_is_out(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(10, [output(2)], hard_timeout=1, flags=of.OFPFF_SEND_FLOW_REM))
    gone = peer.hear()
    assert (gone.msg_type, gone.reason) == (of.OFPT_FLOW_REMOVED, of.OFPRR_HARD_TIMEOUT)
    assert list(bench.datapath.forward(1, frame())) == []


def test_a_packet_goes_through_several_tables(bench: Bench, peer: Peer) -> None:
    first = [parser.OFPActionSetField(ip_dscp=9)]
    peer.after(
        flow_mod(
            5,
            match=parser.OFPMatch(**TO_B),
            instructions=[
                parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, first),
                parser.OFPInstructionGotoTable(2),
            ],
        ),
        flow_mod(9, [output(2)], parser.OFPMatch(eth_type=0x0800, ip_dscp=9), table_id=2),
        flow_mod(8, [output(3)], table_id=2),
    )
    ((port, sent),) = bench.datapath.forward(1, frame())
    assert (port, sent[15] >> 2) == (2, 9)
    counted = {flow.table_id * 100 + flow.priority: flow for flow in peer.statistics(flows_request())}
    assert {key: flow.packet_count for key, flow in counted.items()} == {5: 1, 209: 1, 208: 0}


def test_a_group_shares_out_and_can_be_asked_about(bench: Bench, peer: Peer) -> None:
    buckets = [parser.OFPBucket(0, of.OFPP_ANY, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    assert (
        peer.after(
            parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_ALL, 1, buckets),
            flow_mod(1, [parser.OFPActionGroup(1)]),
        )
        == []
    )
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [2, 3]
    (told,) = peer.statistics(parser.OFPGroupDescStatsRequest(DATAPATH, 0))
    assert [bucket.actions[0].port for bucket in told.buckets] == [2, 3]
    (counted,) = peer.statistics(parser.OFPGroupStatsRequest(DATAPATH, 0, of.OFPG_ALL))
    assert (counted.group_id, counted.ref_count) == (1, 1)
    peer.after(parser.OFPGroupMod(DATAPATH, of.OFPGC_DELETE, of.OFPGT_ALL, of.OFPG_ALL, []))
    assert peer.statistics(flows_request()) == []


# --- packets -----------------------------------------------------------------------------------------------------------


def test_a_packet_comes_to_the_controller_and_goes_back(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(7, [output(of.OFPP_CONTROLLER)], parser.OFPMatch(eth_type=0x0800), cookie=5))
    bench.datapath.forward(3, frame())
    heard = peer.hear()
    assert (heard.reason, heard.cookie, heard.match["in_port"]) == (of.OFPR_ACTION, 5, 3)
    assert (heard.data, heard.total_len) == (frame(), len(frame()))
    back = [output(of.OFPP_IN_PORT)]
    assert peer.after(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, 3, back, heard.data)) == []
    assert bench.datapath.sent == [(3, frame())]


def test_what_no_entry_takes_is_said_to_be_so(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(0, [output(of.OFPP_CONTROLLER)]))
    bench.datapath.forward(1, frame())
    assert peer.hear().reason == of.OFPR_NO_MATCH


def test_a_packet_out_can_go_through_the_tables(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    out = [output(of.OFPP_TABLE)]
    peer.after(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, frame()))
    assert bench.datapath.sent == [(2, frame())]


def test_a_port_that_loses_its_carrier_is_told_of(bench: Bench, peer: Peer) -> None:
    bench.interfaces.carrier("b", up=False)
    told = peer.hear()
    assert (told.msg_type, told.reason, told.desc.port_no) == (of.OFPT_PORT_STATUS, of.OFPPR_MODIFY, 2)
    assert told.desc.state == of.OFPPS_LINK_DOWN


def test_packets_turn_to_the_next_port_when_one_loses_its_carrier(bench: Bench, peer: Peer) -> None:
    buckets = [parser.OFPBucket(0, port, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    group = parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_FF, 1, buckets)
    assert peer.after(group, flow_mod(1, [parser.OFPActionGroup(1)])) == []
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [2]
    bench.interfaces.carrier("b", up=False)
    assert peer.hear().msg_type == of.OFPT_PORT_STATUS
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [3]


def test_port_statistics_are_those_of_the_interface(peer: Peer) -> None:
    (port,) = peer.statistics(parser.OFPPortStatsRequest(DATAPATH, 0, 1))
    assert (port.rx_packets, port.tx_packets, port.rx_bytes, port.tx_bytes) == (5, 6, 500, 600)


@pytest.mark.parametrize(
    "request_",
    [
        parser.OFPDescStatsRequest(DATAPATH, 0),
        parser.OFPTableStatsRequest(DATAPATH, 0),
        parser.OFPTableFeaturesStatsRequest(DATAPATH, 0),
        parser.OFPGroupFeaturesStatsRequest(DATAPATH, 0),
        parser.OFPMeterFeaturesStatsRequest(DATAPATH, 0),
        parser.OFPMeterConfigStatsRequest(DATAPATH, 0),
        parser.OFPQueueStatsRequest(DATAPATH, 0, of.OFPP_ANY, of.OFPQ_ALL),
    ],
    ids=lambda request: type(request).__name__,
)
def test_every_kind_of_statistics_can_be_read(peer: Peer, request_: object) -> None:
    assert isinstance(peer.statistics(request_), list)


# --- refusals ----------------------------------------------------------------------------------------------------------

REFUSED = {
    "a port that isn't there": (flow_mod(1, [output(77)]), "BAD_ACTION", "BAD_OUT_PORT"),
    "a group that isn't there": (flow_mod(1, [parser.OFPActionGroup(7)]), "BAD_ACTION", "BAD_OUT_GROUP"),
    "a table that isn't there": (flow_mod(1, [output(1)], table_id=99), "FLOW_MOD_FAILED", "BAD_TABLE_ID"),
    "a field not looked at": (
        flow_mod(1, match=parser.OFPMatch(eth_type=0x86DD, ipv6_flabel=1)),
        "BAD_MATCH",
        "BAD_FIELD",
    ),
    "a VLAN to be pushed": (flow_mod(1, [parser.OFPActionPushVlan()]), "BAD_ACTION", "BAD_TYPE"),
    "a field that can't be set": (
        flow_mod(1, [parser.OFPActionSetField(ipv4_dst="10.0.0.1")]),
        "BAD_ACTION",
        "BAD_SET_TYPE",
    ),
    "a meter": (
        flow_mod(1, instructions=[parser.OFPInstructionMeter(1)]),
        "BAD_INSTRUCTION",
        "UNSUP_INST",
    ),
    "a way back through the tables": (
        flow_mod(1, instructions=[parser.OFPInstructionGotoTable(1)], table_id=1),
        "BAD_INSTRUCTION",
        "BAD_TABLE_ID",
    ),
    "a buffer": (flow_mod(1, [output(1)], buffer_id=5), "BAD_REQUEST", "BUFFER_UNKNOWN"),
    "a meter's making": (
        parser.OFPMeterMod(DATAPATH, of.OFPMC_ADD, of.OFPMF_KBPS, 1, [parser.OFPMeterBandDrop(1, 1)]),
        "METER_MOD_FAILED",
        "OUT_OF_METERS",
    ),
    "a group modified before it is made": (
        parser.OFPGroupMod(DATAPATH, of.OFPGC_MODIFY, of.OFPGT_ALL, 9, []),
        "GROUP_MOD_FAILED",
        "UNKNOWN_GROUP",
    ),
    "an experimenter's message": (
        parser.OFPExperimenter(DATAPATH, 1, 2, b""),
        "BAD_REQUEST",
        "BAD_EXPERIMENTER",
    ),
    "statistics of no port": (parser.OFPPortStatsRequest(DATAPATH, 0, 77), "BAD_REQUEST", "BAD_PORT"),
    "a port's configuration": (
        parser.OFPPortMod(DATAPATH, 1, "00:00:00:00:00:07", of.OFPPC_PORT_DOWN, of.OFPPC_PORT_DOWN, 0),
        "PORT_MOD_FAILED",
        "BAD_CONFIG",
    ),
}


@pytest.mark.parametrize("asked", REFUSED, ids=lambda name: name.replace(" ", "-"))
def test_what_is_refused_is_told_with_openflows_own_code(bench: Bench, peer: Peer, asked: str) -> None:
    message, kind, code = REFUSED[asked]
    (error,) = peer.after(message)
    said = of.ofp_error_code_to_str(error.type, error.code)
    assert of.ofp_error_type_to_str(error.type).startswith(f"OFPET_{kind}(")
    assert said.split("(")[0].endswith(f"_{code}"), said
    assert error.data == bytes(message.buf)[:256]
    assert peer.statistics(flows_request()) == []


def test_a_switch_without_meters_deletes_them_all_the_same(peer: Peer) -> None:
    assert peer.after(parser.OFPMeterMod(DATAPATH, of.OFPMC_DELETE, 0, of.OFPM_ALL, [])) == []


def test_where_there_is_no_room_the_rest_is_done() -> None:
    with ExitStack() as undo:
        bench = _bench(undo, Watched(room=5))
        peer = bench.greeted()
        with peer.sock:
            mods = [flow_mod(number + 1, [output(2)], parser.OFPMatch(**TO_B)) for number in range(8)]
            errors = peer.after(*mods)
            assert {of.ofp_error_code_to_str(error.type, error.code) for error in errors} == {
                "OFPFMFC_TABLE_FULL(1)"
            }
            assert len(errors) == 3
            assert sorted(flow.priority for flow in peer.statistics(flows_request())) == [1, 2, 3, 4, 5]


def test_a_slave_may_look_and_not_touch(peer: Peer) -> None:
    reply = peer.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_SLAVE, 3))
    assert (reply.role, reply.generation_id) == (of.OFPCR_ROLE_SLAVE, 3)
    (error,) = peer.after(flow_mod(1, [output(1)]))
    assert of.ofp_error_code_to_str(error.type, error.code) == "OFPBRC_IS_SLAVE(10)"
    stale = peer.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_MASTER, 2))
    assert (stale.type, stale.code) == (of.OFPET_ROLE_REQUEST_FAILED, of.OFPRRFC_STALE)


# --- guests ------------------------------------------------------------------------------------------------------------


def test_a_guest_sees_and_changes_what_the_controller_does(bench: Bench, peer: Peer) -> None:
    guest = bench.guest()
    peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B), flags=of.OFPFF_SEND_FLOW_REM))
    assert [flow.priority for flow in guest.statistics(flows_request())] == [10]
    assert guest.after(flow_mod(command=of.OFPFC_DELETE), flow_mod(11, [output(3)])) == []
    gone = peer.hear()
    assert (gone.msg_type, gone.reason) == (of.OFPT_FLOW_REMOVED, of.OFPRR_DELETE)
    assert [flow.priority for flow in peer.statistics(flows_request())] == [11]


def test_a_guest_is_told_of_packets_and_ports_only_if_it_asks(bench: Bench, peer: Peer) -> None:
    silent, curious = bench.guest(), bench.guest()
    assert curious.after(parser.OFPSetAsync(DATAPATH, [0b11, 0], [0b111, 0], [0, 0])) == []
    peer.after(flow_mod(7, [output(of.OFPP_CONTROLLER)]))
    bench.datapath.forward(3, frame())
    assert peer.hear().data == curious.hear().data == frame()
    bench.interfaces.carrier("b", up=False)
    assert peer.hear().desc.port_no == curious.hear().desc.port_no == 2
    assert silent.after() == []


def test_a_new_master_makes_slaves_of_others(bench: Bench, peer: Peer) -> None:
    guest = bench.guest()
    assert peer.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_MASTER, 1)).role == of.OFPCR_ROLE_MASTER
    assert guest.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_MASTER, 2)).role == of.OFPCR_ROLE_MASTER
    assert peer.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_NOCHANGE, 0)).role == of.OFPCR_ROLE_SLAVE


def test_a_switch_has_guests_while_its_controller_is_away(bench: Bench) -> None:
    with bench.greeted().sock:
        pass
    guest = bench.guest()
    assert guest.after(flow_mod(1, [output(2)])) == []
    assert bench.datapath.forward(1, frame()) == [(2, frame())]


def test_the_door_is_for_its_owner_alone(bench: Bench) -> None:
    assert stat.S_IMODE(bench.door.stat().st_mode) == 0o600


@pytest.mark.skipif(not shutil.which("ovs-ofctl"), reason="needs ovs-ofctl")
def test_open_vswitchs_own_tool_speaks_with_it(bench: Bench) -> None:
    def ofctl(command: str, *words: str, told: str = "") -> str:
        argv = ["ovs-ofctl", "-O", "OpenFlow13", command, f"unix:{bench.door}", *words]
        done = subprocess.run(argv, input=told, capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rules = ["priority=2,ip,nw_dst=10.0.0.0/8,nw_tos=12 actions=mod_dl_dst:00:00:00:00:00:09,output:2"]
    rules += ["priority=1,arp,arp_tpa=10.0.0.1 actions=ALL", "priority=0 actions=CONTROLLER:128"]
    ofctl("replace-flows", "-", told="\n".join(rules))
    shown = ofctl("dump-flows", "--no-stats").splitlines()
    assert sorted(line.strip() for line in shown if "priority" in line) == [
        "priority=0 actions=CONTROLLER:128",
        "priority=1,arp,arp_tpa=10.0.0.1 actions=ALL",
        "priority=2,ip,nw_dst=10.0.0.0/8,nw_tos=12 actions=set_field:00:00:00:00:00:09->eth_dst,output:2",
    ]
    ofctl("add-group", "group_id=1,type=select,bucket=weight:1,output:2,bucket=weight:2,output:3")
    assert "group_id=1,type=select" in ofctl("dump-groups")
    for command in (
        "show",
        "dump-tables",
        "dump-ports",
        "dump-desc",
        "dump-group-stats",
        "dump-aggregate",
        "queue-stats",
    ):
        ofctl(command)
    ofctl("del-flows", "ip")
    assert "nw_dst" not in ofctl("dump-flows")


# --- controllers come and go -------------------------------------------------------------------------------------------


def test_rules_go_on_without_a_controller_and_are_there_when_it_comes_back(bench: Bench) -> None:
    first = bench.greeted()
    with first.sock:
        first.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    assert bench.datapath.forward(1, frame()) == [(2, frame())]
    second = bench.greeted()
    with second.sock:
        (flow,) = second.statistics(flows_request())
        assert (flow.priority, flow.packet_count) == (10, 1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4))
def test_nonsense_never_ends_the_agent(bench: Bench, nonsense: list[bytes]) -> None:
    peer = bench.accept()
    with peer.sock:
        peer.sock.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
        for bytes_ in nonsense:
            kind = bytes_[0] % 31
            peer.sock.sendall(struct.pack("!BBHI", 4, kind, 8 + len(bytes_), 9) + bytes_)
        peer.hear()
        peer.send(parser.OFPEchoRequest(DATAPATH, data=b"still there?"))
        while (heard := peer.hear()).msg_type != of.OFPT_ECHO_REPLY or heard.data != b"still there?":
            pass
