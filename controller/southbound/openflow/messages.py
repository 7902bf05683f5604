"""OpenFlow 1.3 messages as bytes, serialised by Ryu without a connection.

Their transaction numbers are set when they are sent.
"""

from typing import Any, Final

from moefabric.controller.southbound.openflow import framework
from moefabric.controller.southbound.openflow.flow_entries import (
    ARP_PRIORITY,
    PROBE_PRIORITY,
    FlowEntry,
)
from moefabric.controller.southbound.openflow.spread_groups import Buckets
from moefabric.core.topology import HOST_PORT

of = framework.module("ofproto.ofproto_v1_3")
parser = framework.module("ofproto.ofproto_v1_3_parser")

COOKIE_BITS: Final = 64
_ETH_ARP, _ETH_IP = 0x0806, 0x0800


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
    output = entry.port if group is None else parser.OFPActionGroup(group)
    return _flow_mod(of.OFPFC_ADD, _match(entry), output, cookie=cookie, priority=entry.priority)


def deletion(entry: FlowEntry) -> bytes:
    """Return a flow-mod that deletes exactly this entry."""
    return _flow_mod(of.OFPFC_DELETE_STRICT, _match(entry), priority=entry.priority)


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
    out = [parser.OFPActionOutput(port)]
    return _serialised(
        parser.OFPPacketOut(_ANY_SWITCH, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, frame)
    )


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


def match_of_flow(flow: Any) -> tuple[int, int, int, int | None]:
    """Return the `FlowEntry.match` of flow statistics."""
    fields = dict(flow.match.items())
    destination = fields.get("ipv4_dst", ("", "0.0.0.0"))  # noqa: S104 - a mask
    exact = (destination, "255.255.255.255")
    address, mask = destination if isinstance(destination, tuple) else exact
    return flow.priority, _number(address or mask), _number(mask).bit_count(), fields.get("ip_dscp")


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


def _match(entry: FlowEntry) -> Any:
    mask = (0xFFFFFFFF << (32 - entry.length)) & 0xFFFFFFFF
    marked = {} if entry.dscp is None else {"ip_dscp": entry.dscp}
    return parser.OFPMatch(eth_type=_ETH_IP, ipv4_dst=(entry.network, mask), **marked)


def _number(address: str) -> int:
    return int.from_bytes(bytes(map(int, address.split("."))), "big")


def _serialised(message: Any) -> bytes:
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


BARRIER: Final = _serialised(parser.OFPBarrierRequest(_ANY_SWITCH))
