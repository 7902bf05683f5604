"""Several controllers of a switch: slaves, masters, and tools on its management socket."""

import shutil
import stat
import subprocess

import pytest

from tests.support.openflow_bench import TO_B, Bench, frame
from tests.support.openflow_lab import DATAPATH, Peer, flow_mod, flows_request, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser


def test_slave_may_read_and_not_write(peer: Peer) -> None:
    reply = peer.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_SLAVE, 3))
    assert (reply.role, reply.generation_id) == (of.OFPCR_ROLE_SLAVE, 3)
    (error,) = peer.after(flow_mod(1, [output(1)]))
    assert of.ofp_error_code_to_str(error.type, error.code) == "OFPBRC_IS_SLAVE(10)"
    stale = peer.ask(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_MASTER, 2))
    assert (stale.type, stale.code) == (of.OFPET_ROLE_REQUEST_FAILED, of.OFPRRFC_STALE)


def test_tool_reads_and_changes_entries(bench: Bench, peer: Peer) -> None:
    tool = bench.connect_tool()
    peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B), flags=of.OFPFF_SEND_FLOW_REM))
    assert [flow.priority for flow in tool.statistics(flows_request())] == [10]
    assert tool.after(flow_mod(command=of.OFPFC_DELETE), flow_mod(11, [output(3)])) == []
    removal = peer.receive()
    assert (removal.msg_type, removal.reason) == (of.OFPT_FLOW_REMOVED, of.OFPRR_DELETE)
    assert [flow.priority for flow in peer.statistics(flows_request())] == [11]


def test_tool_gets_asynchronous_messages_only_on_request(bench: Bench, peer: Peer) -> None:
    silent, curious = bench.connect_tool(), bench.connect_tool()
    assert curious.after(parser.OFPSetAsync(DATAPATH, [0b11, 0], [0b111, 0], [0, 0])) == []
    peer.after(flow_mod(7, [output(of.OFPP_CONTROLLER)]))
    bench.datapath.forward(3, frame())
    assert peer.receive().data == curious.receive().data == frame()
    bench.interfaces.carrier("b", up=False)
    assert peer.receive().desc.port_no == curious.receive().desc.port_no == 2
    assert silent.after() == []


def test_new_master_makes_others_slaves(bench: Bench, peer: Peer) -> None:
    tool = bench.connect_tool()
    for controller, role, generation, expected in (
        (peer, of.OFPCR_ROLE_MASTER, 1, of.OFPCR_ROLE_MASTER),
        (tool, of.OFPCR_ROLE_MASTER, 2, of.OFPCR_ROLE_MASTER),
        (peer, of.OFPCR_ROLE_NOCHANGE, 0, of.OFPCR_ROLE_SLAVE),
    ):
        request = parser.OFPRoleRequest(DATAPATH, role, generation)
        assert controller.ask(request).role == expected


def test_tool_connects_without_controller(bench: Bench) -> None:
    with bench.greeted().sock:
        pass
    tool = bench.connect_tool()
    assert tool.after(flow_mod(1, [output(2)])) == []
    assert bench.datapath.forward(1, frame()) == [(2, frame())]


def test_management_socket_is_private(bench: Bench) -> None:
    assert stat.S_IMODE(bench.management.stat().st_mode) == 0o600


@pytest.mark.skipif(not shutil.which("ovs-ofctl"), reason="needs ovs-ofctl")
def test_ovs_ofctl_reads_and_changes_switch(bench: Bench) -> None:
    def ofctl(command: str, *arguments: str, text: str = "") -> str:
        argv = ["ovs-ofctl", "-O", "OpenFlow13", command, f"unix:{bench.management}", *arguments]
        process = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=10, check=False
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    rules = [
        "priority=2,ip,nw_dst=10.0.0.0/8,nw_tos=12 actions=mod_dl_dst:00:00:00:00:00:09,output:2"
    ]
    rules += ["priority=1,arp,arp_tpa=10.0.0.1 actions=ALL", "priority=0 actions=CONTROLLER:128"]
    ofctl("replace-flows", "-", text="\n".join(rules))
    flows = ofctl("dump-flows", "--no-stats").splitlines()
    assert sorted(line.strip() for line in flows if "priority" in line) == [
        "priority=0 actions=CONTROLLER:128",
        "priority=1,arp,arp_tpa=10.0.0.1 actions=ALL",
        (
            "priority=2,ip,nw_dst=10.0.0.0/8,nw_tos=12 "
            "actions=set_field:00:00:00:00:00:09->eth_dst,output:2"
        ),
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
