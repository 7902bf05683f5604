"""Requests that a switch refuses with OpenFlow's error codes, and partial refusals."""

from contextlib import ExitStack

import pytest

from tests.support.openflow_bench import TO_B, Bench, RecordingDatapath, bench_of
from tests.support.openflow_lab import DATAPATH, Peer, flow_mod, flows_request, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

REFUSED = {
    "an unknown port": (flow_mod(1, [output(77)]), "BAD_ACTION", "BAD_OUT_PORT"),
    "an unknown group": (flow_mod(1, [parser.OFPActionGroup(7)]), "BAD_ACTION", "BAD_OUT_GROUP"),
    "an unknown table": (flow_mod(1, [output(1)], table_id=99), "FLOW_MOD_FAILED", "BAD_TABLE_ID"),
    "an unsupported field": (
        flow_mod(1, match=parser.OFPMatch(eth_type=0x86DD, ipv6_flabel=1)),
        "BAD_MATCH",
        "BAD_FIELD",
    ),
    "an unsupported action": (flow_mod(1, [parser.OFPActionPushVlan()]), "BAD_ACTION", "BAD_TYPE"),
    "an unsupported set-field": (
        flow_mod(1, [parser.OFPActionSetField(ipv4_dst="10.0.0.1")]),
        "BAD_ACTION",
        "BAD_SET_TYPE",
    ),
    "a meter": (
        flow_mod(1, instructions=[parser.OFPInstructionMeter(1)]),
        "BAD_INSTRUCTION",
        "UNSUP_INST",
    ),
    "a goto to the same table": (
        flow_mod(1, instructions=[parser.OFPInstructionGotoTable(1)], table_id=1),
        "BAD_INSTRUCTION",
        "BAD_TABLE_ID",
    ),
    "a buffer": (flow_mod(1, [output(1)], buffer_id=5), "BAD_REQUEST", "BUFFER_UNKNOWN"),
    "a new meter": (
        parser.OFPMeterMod(
            DATAPATH, of.OFPMC_ADD, of.OFPMF_KBPS, 1, [parser.OFPMeterBandDrop(1, 1)]
        ),
        "METER_MOD_FAILED",
        "OUT_OF_METERS",
    ),
    "a modified unknown group": (
        parser.OFPGroupMod(DATAPATH, of.OFPGC_MODIFY, of.OFPGT_ALL, 9, []),
        "GROUP_MOD_FAILED",
        "UNKNOWN_GROUP",
    ),
    "an experimenter's message": (
        parser.OFPExperimenter(DATAPATH, 1, 2, b""),
        "BAD_REQUEST",
        "BAD_EXPERIMENTER",
    ),
    "statistics of an unknown port": (
        parser.OFPPortStatsRequest(DATAPATH, 0, 77),
        "BAD_REQUEST",
        "BAD_PORT",
    ),
    "a port's configuration": (
        parser.OFPPortMod(
            DATAPATH, 1, "00:00:00:00:00:07", of.OFPPC_PORT_DOWN, of.OFPPC_PORT_DOWN, 0
        ),
        "PORT_MOD_FAILED",
        "BAD_CONFIG",
    ),
}


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: name.replace(" ", "-"))
def test_refused_request_gets_specific_error(bench: Bench, peer: Peer, name: str) -> None:
    message, kind, code = REFUSED[name]
    (error,) = peer.after(message)
    text = of.ofp_error_code_to_str(error.type, error.code)
    assert of.ofp_error_type_to_str(error.type).startswith(f"OFPET_{kind}(")
    assert text.split("(")[0].endswith(f"_{code}"), text
    assert error.data == bytes(message.buf)[:256]
    assert peer.statistics(flows_request()) == []


def test_deleting_all_meters_succeeds(peer: Peer) -> None:
    assert peer.after(parser.OFPMeterMod(DATAPATH, of.OFPMC_DELETE, 0, of.OFPM_ALL, [])) == []


def test_full_datapath_refuses_only_what_does_not_fit() -> None:
    with ExitStack() as undo:
        bench = bench_of(RecordingDatapath(room=5), undo)
        peer = bench.greeted()
        with peer.sock:
            mods = [
                flow_mod(number + 1, [output(2)], parser.OFPMatch(**TO_B)) for number in range(8)
            ]
            errors = peer.after(*mods)
            assert {of.ofp_error_code_to_str(error.type, error.code) for error in errors} == {
                "OFPFMFC_TABLE_FULL(1)"
            }
            assert len(errors) == 3
            assert sorted(flow.priority for flow in peer.statistics(flows_request())) == list(
                range(1, 6)
            )
