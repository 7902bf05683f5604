"""Who else speaks with a switch of ours: slaves, other masters, and tools at its own door."""

import shutil
import stat
import subprocess

import pytest

from tests.openflow_bench import TO_B, Bench, frame
from tests.openflow_lab import DATAPATH, Peer, flow_mod, flows_request, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser


def test_a_slave_may_look_and_not_touch(peer: Peer) -> None:
    reply = peer.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_SLAVE, 3))
    assert (reply.role, reply.generation_id) == (of.OFPCR_ROLE_SLAVE, 3)
    (error,) = peer.after(flow_mod(1, [output(1)]))
    assert of.ofp_error_code_to_str(error.type, error.code) == "OFPBRC_IS_SLAVE(10)"
    stale = peer.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_MASTER, 2))
    assert (stale.type, stale.code) == (of.OFPET_ROLE_REQUEST_FAILED, of.OFPRRFC_STALE)


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
