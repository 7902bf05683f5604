"""OpenFlow 1.3 messages as bytes; their transaction numbers are set when they are sent.

Ryu serialises rare messages, and takes 0.25 ms for a flow-mod. Flow-mods of rules and packet-outs,
on which a reconfiguration waits, are packed here.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from moefabric.controller.southbound.openflow import frame_check, framework
from moefabric.controller.southbound.openflow.flow_entries import (
    ARP_PRIORITY,
    PROBE_PRIORITY,
    FlowEntry,
)
from moefabric.controller.southbound.openflow.frame_check import HEADER, FrameError
from moefabric.controller.southbound.openflow.spread_groups import Buckets
from moefabric.core import switch_proof
from moefabric.core.topology import HOST_PORT

of = framework.module("ofproto.ofproto_v1_3")
parser = framework.module("ofproto.ofproto_v1_3_parser")

COOKIE_BITS: Final = 64
_ETH_ARP, _ETH_IP = 0x0806, 0x0800
_FLOW_MOD: Final = struct.Struct("!QQBBHHHIIIH2x")
_MATCH: Final = struct.Struct("!HH")
_OUTPUT: Final = struct.Struct("!HHIH6x")
_TO_GROUP: Final = struct.Struct("!HHI")
_SET_MAC: Final = struct.Struct("!HHIHI2x")
_ETH_DST: Final = 0x80000606
_INSTRUCTION: Final = struct.Struct("!HH4x")
_PACKET_OUT: Final = struct.Struct("!IIH6x")
_PACKET_IN: Final = struct.Struct("!IHBBQHHII4x2x")  # with a match of the port alone
_PACKET_IN_MATCH: Final = 24
_IN_PORT: Final = 0x80000004
_IN_PORT_MATCH: Final = (of.OFPMT_OXM, 12, _IN_PORT)
_FLOW_STATISTICS: Final = struct.Struct("!HBxIIHHHH4xQQQ")
_DSCP_FIELD, _TO_ADDRESS, _TO_NETWORK = 0x80001001, 0x80001804, 0x80001908
_ERROR: Final = struct.Struct("!HH")  # type, code; the failed request follows
_EXPERIMENTER: Final = struct.Struct("!II")
_ETH_TYPE_IP: Final = bytes.fromhex("80000a02 0800")
_DSCP: Final = bytes.fromhex("80001001")
_DESTINATION: Final = bytes.fromhex("80001908")
_ALL_ONES: Final = 0xFFFFFFFF


_ANY_SWITCH: Final = framework.module("ofproto.ofproto_protocol").ProtocolDesc(of.OFP_VERSION)
"""Stands for the connection that Ryu's messages are made for."""


def with_xid(message: bytes, xid: int) -> bytes:
    """Return a message with this transaction number (OpenFlow 1.3.5, 7.1: bytes 4 to 8)."""
    return message[:4] + xid.to_bytes(4, "big") + message[8:]


def addition(entry: FlowEntry, cookie: int, group: int | None = None) -> bytes:
    """Return a flow-mod that adds an entry, in place of one with the same match.

    Args:
        entry: The entry.
        cookie: Its cookie.
        group: The group that packets are sent to instead of the entry's port.
    """
    action = b""
    if group is not None:
        action = _TO_GROUP.pack(of.OFPAT_GROUP, _TO_GROUP.size, group)
    elif entry.port is not None:
        action = _OUTPUT.pack(of.OFPAT_OUTPUT, _OUTPUT.size, entry.port, of.OFPCML_NO_BUFFER)
    if entry.mac is not None:
        mac = entry.mac >> 32, entry.mac & _ALL_ONES
        action = _SET_MAC.pack(of.OFPAT_SET_FIELD, _SET_MAC.size, _ETH_DST, *mac) + action
    length = _INSTRUCTION.size + len(action)
    apply = _INSTRUCTION.pack(of.OFPIT_APPLY_ACTIONS, length) + action if action else b""
    return _entry_mod(of.OFPFC_ADD, entry, cookie, _entry_match(entry) + apply)


def deletion(entry: FlowEntry) -> bytes:
    """Return a flow-mod that deletes exactly this entry."""
    return _entry_mod(of.OFPFC_DELETE_STRICT, entry, 0, _entry_match(entry))


def _entry_mod(command: int, entry: FlowEntry, cookie: int, tail: bytes) -> bytes:
    """Return a flow-mod of an entry, given its encoded match and instructions."""
    fixed = cookie, 0, 0, command, 0, 0, entry.priority, of.OFP_NO_BUFFER
    body = _FLOW_MOD.pack(*fixed, of.OFPP_ANY, of.OFPG_ANY, 0) + tail
    return HEADER.pack(of.OFP_VERSION, of.OFPT_FLOW_MOD, HEADER.size + len(body), 0) + body


def _entry_match(entry: FlowEntry) -> bytes:
    """Return the encoded match of an entry, padded to eight bytes (7.2.3.1)."""
    mask = (_ALL_ONES << (32 - entry.length)) & _ALL_ONES
    fields = _ETH_TYPE_IP
    if entry.dscp is not None:
        fields += _DSCP + bytes((entry.dscp,))
    fields += _DESTINATION + entry.network.to_bytes(4, "big") + mask.to_bytes(4, "big")
    length = _MATCH.size + len(fields)
    return _MATCH.pack(of.OFPMT_OXM, length) + fields + bytes(-length % 8)


def group_addition(number: int, buckets: Buckets) -> bytes:
    """Return a group-mod that adds a select group, which spreads flows over ports."""
    parts = [
        parser.OFPBucket(weight, of.OFPP_ANY, of.OFPG_ANY, [parser.OFPActionOutput(port)])
        for port, weight in buckets
    ]
    return _group_mod(of.OFPGC_ADD, number, parts)


def group_deletion(number: int | None = None) -> bytes:
    """Return a group-mod that deletes a group, or all, with the entries that use it."""
    return _group_mod(of.OFPGC_DELETE, of.OFPG_ALL if number is None else number, [])


def arp_to_controller(cookie: int) -> bytes:
    """Return a flow-mod that sends ARP from the server's port to the controller."""
    match = parser.OFPMatch(in_port=HOST_PORT, eth_type=_ETH_ARP)
    return _flow_mod(of.OFPFC_ADD, match, of.OFPP_CONTROLLER, cookie=cookie, priority=ARP_PRIORITY)


def probes_to_controller(cookie: int, ethertype: int) -> bytes:
    """Return a flow-mod that sends whole probes of light to the controller."""
    match = parser.OFPMatch(eth_type=ethertype)
    return _flow_mod(
        of.OFPFC_ADD, match, of.OFPP_CONTROLLER, cookie=cookie, priority=PROBE_PRIORITY
    )


def packet_out(port: int, frame: bytes) -> bytes:
    """Return a message that sends a frame out of a port."""
    output = _OUTPUT.pack(of.OFPAT_OUTPUT, _OUTPUT.size, port, of.OFPCML_MAX)
    body = _PACKET_OUT.pack(of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, _OUTPUT.size) + output + frame
    return HEADER.pack(of.OFP_VERSION, of.OFPT_PACKET_OUT, HEADER.size + len(body), 0) + body


def packet_in(message: bytes) -> tuple[int, bytes]:
    """Return the port and the frame of a packet-in; raise FrameError if it has none."""
    if len(message) >= HEADER.size + _PACKET_IN.size:
        *_, kind, length, field, port = _PACKET_IN.unpack_from(message, HEADER.size)
        if (kind, length, field) == _IN_PORT_MATCH:
            return port, message[HEADER.size + _PACKET_IN.size :]
    fields = dict(frame_check.match_fields(message, _PACKET_IN_MATCH))
    if len(fields.get(_IN_PORT, b"")) != 4:
        raise FrameError("a packet-in without a port")
    length = _MATCH.unpack_from(message, _PACKET_IN_MATCH)[1]
    return int.from_bytes(fields[_IN_PORT]), message[_PACKET_IN_MATCH + length + -length % 8 + 2 :]


def error(message: bytes) -> tuple[int, str]:
    """Return the transaction number of a request that failed, and why it did."""
    kind, code = _ERROR.unpack_from(message, HEADER.size)
    failed = message[HEADER.size + _ERROR.size :]
    return int.from_bytes(failed[4:8]), str(of.ofp_error_code_to_str(kind, code))


def challenge(random: bytes) -> bytes:
    """Return a message that asks a switch for its proof."""
    body = _EXPERIMENTER.pack(switch_proof.EXPERIMENTER, switch_proof.CHALLENGE) + random
    length = HEADER.size + len(body)
    return HEADER.pack(of.OFP_VERSION, of.OFPT_EXPERIMENTER, length, 0) + body


def proved_id(token: str, random: bytes, message: bytes) -> int | None:
    """Return the datapath id that an experimenter message proves; None if it proves nothing."""
    body = message[HEADER.size :]
    head = _EXPERIMENTER.pack(switch_proof.EXPERIMENTER, switch_proof.PROOF)
    return switch_proof.proved_id(token, random, body[len(head) :]) if body[:8] == head else None


def deletions_of_others(cookie: int) -> list[bytes]:
    """Return flow-mods that delete every entry with another cookie.

    OpenFlow matches no inequality, but an unequal cookie differs in one of 64 bits.
    """
    return [
        _flow_mod(
            of.OFPFC_DELETE,
            parser.OFPMatch(),
            cookie=~cookie & bit,
            cookie_mask=bit,
            table_id=of.OFPTT_ALL,
        )
        for bit in (1 << number for number in range(COOKIE_BITS))
    ]


def statistics_request() -> bytes:
    """Return a request for the counters of all entries."""
    return _serialised(
        parser.OFPFlowStatsRequest(
            _ANY_SWITCH, 0, of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch()
        )
    )


class FlowCount(NamedTuple):
    """Packets and bytes of the entry with a `FlowEntry.match`."""

    match: tuple[int, int, int, int | None]
    packets: int
    bytes: int


def flow_counts(message: bytes) -> Iterator[FlowCount]:
    """Yield the counts of each entry in flow statistics; raise FrameError if a length is wrong."""
    for entry in frame_check.flow_statistics(message):
        _, _, _, _, priority, *_, packets, octets = _FLOW_STATISTICS.unpack_from(entry)
        fields = dict(frame_check.match_fields(entry, _FLOW_STATISTICS.size))
        network = fields.get(_TO_NETWORK, bytes(8))
        if address := fields.get(_TO_ADDRESS):
            network = address + b"\xff\xff\xff\xff"
        mark = fields.get(_DSCP_FIELD)
        destination, mask = network[:4], network[4:]
        identity = int.from_bytes(destination), int.from_bytes(mask).bit_count()
        dscp = int.from_bytes(mark) if mark else None
        yield FlowCount((priority, *identity, dscp), packets, octets)


def _group_mod(command: int, number: int, buckets: list[Any]) -> bytes:
    return _serialised(parser.OFPGroupMod(_ANY_SWITCH, command, of.OFPGT_SELECT, number, buckets))


def _flow_mod(command: int, match: Any, output: Any = None, **fields: int) -> bytes:
    """Return a flow-mod whose entry sends packets out of a port or to a group, if any."""
    if isinstance(output, int):
        output = parser.OFPActionOutput(output, of.OFPCML_NO_BUFFER)
    outputs = [] if output is None else [output]
    apply = [parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, outputs)] if outputs else []
    fields |= {"command": command, "out_port": of.OFPP_ANY, "out_group": of.OFPG_ANY}
    return _serialised(parser.OFPFlowMod(_ANY_SWITCH, match=match, instructions=apply, **fields))


def _serialised(message: Any) -> bytes:
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


BARRIER: Final = _serialised(parser.OFPBarrierRequest(_ANY_SWITCH))
