"""The messages of a controller to a switch, and the replies that it reads.

Transaction numbers are set when messages are sent.
"""

import struct
from functools import lru_cache
from typing import Final

from moefabric.controller.southbound.openflow import framework
from moefabric.controller.southbound.openflow.flow_entries import (
    ARP_PRIORITY,
    PROBE_PRIORITY,
    FlowEntry,
)
from moefabric.core import switch_proof
from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow import match as oxm
from moefabric.core.openflow import messages as codec
from moefabric.core.openflow.actions import (
    CONTROLLER,
    Action,
    Output,
    SetField,
    ToGroup,
    encode_actions,
    encode_apply,
)
from moefabric.core.openflow.match import ARP, IPV4, Match
from moefabric.core.openflow.messages import Message
from moefabric.core.openflow_ports import HOST_PORT
from moefabric.core.topology import Fabric

_of = framework.module("ofproto.ofproto_v1_3")

Buckets = tuple[tuple[int, int], ...]
"""Ports with their weights, over which a group spreads flows."""
COOKIE_BITS: Final = 64
_IN_IPV4: Final = oxm.BY_NAME["eth_type"].encoded(IPV4)
_DSCP: Final = oxm.BY_NAME["ip_dscp"].header()
_TO_ADDRESS: Final = oxm.BY_NAME["ipv4_dst"].header()
_TO_NETWORK: Final = oxm.BY_NAME["ipv4_dst"].header(masked=True)
_ADD, _DELETE_STRICT = ofp.FlowCommand.ADD, ofp.FlowCommand.DELETE_STRICT
_ALL_ONES: Final = 0xFFFFFFFF
_TO_CONTROLLER: Final = encode_apply((Output(CONTROLLER),))
_ARP_REQUEST, _ARP_REPLY = 1, 2
_ARP_HEADER: Final = struct.pack("!HHBB", 1, IPV4, 6, 4)  # Ethernet, IPv4, address lengths
_ETHERTYPE: Final = struct.pack("!H", ARP)
_ARP_BYTES: Final = 42

BARRIER: Final = codec.encode_message(ofp.MessageType.BARRIER_REQUEST, 0)
STATISTICS_REQUEST: Final = codec.encode_flow_stats_request()
"""A request for the counters of all entries."""


def with_xid(message: bytes, xid: int) -> bytes:
    """Return a message with this transaction number (OpenFlow 1.3.5, 7.1: bytes 4 to 8)."""
    return message[:4] + xid.to_bytes(4, "big") + message[8:]


def addition(entry: FlowEntry, cookie: int, group: int | None = None) -> bytes:
    """Return a flow-mod that adds an entry, in place of one with the same match.

    Packets go to the group, if there is one, instead of the entry's port.
    """
    apply = _instructions(entry.port, entry.mac, group)
    match, priority = _entry_match(entry), entry.priority
    return codec.encode_flow_mod(_ADD, match, apply, priority=priority, cookie=cookie)


def deletion(entry: FlowEntry) -> bytes:
    """Return a flow-mod that deletes exactly this entry."""
    match, priority = _entry_match(entry), entry.priority
    return codec.encode_flow_mod(_DELETE_STRICT, match, priority=priority)


@lru_cache(maxsize=4096)
def _instructions(port: int | None, mac: int | None, group: int | None) -> bytes:
    """Return the encoded instructions of an entry."""
    actions = list[Action]()
    if mac is not None:
        actions.append(SetField("eth_dst", mac))
    if group is not None:
        actions.append(ToGroup(group))
    elif port is not None:
        actions.append(Output(port))
    return encode_apply(tuple(actions))


def _entry_match(entry: FlowEntry) -> bytes:
    """Return the encoded match of an entry."""
    mask = (_ALL_ONES << (32 - entry.length)) & _ALL_ONES
    fields = _IN_IPV4
    if entry.dscp is not None:
        fields += _DSCP + bytes((entry.dscp,))
    fields += _TO_NETWORK + entry.network.to_bytes(4) + mask.to_bytes(4)
    return oxm.padded_match(fields)


def group_addition(number: int, buckets: Buckets) -> bytes:
    """Return a group-mod that adds a select group, which spreads flows over ports."""
    outputs = tuple(codec.Bucket((Output(port),), weight) for port, weight in buckets)
    return codec.GroupMod(ofp.GroupCommand.ADD, ofp.GroupType.SELECT, number, outputs).encode()


def group_deletion(number: int = ofp.ALL_GROUPS) -> bytes:
    """Return a group-mod that deletes a group, or all, with the entries that use it."""
    return codec.GroupMod(ofp.GroupCommand.DELETE, ofp.GroupType.SELECT, number).encode()


def arp_to_controller(cookie: int) -> bytes:
    """Return a flow-mod that sends ARP from the server's port to the controller."""
    return _punt(Match.of(in_port=HOST_PORT, eth_type=ARP), ARP_PRIORITY, cookie)


def probes_to_controller(cookie: int, ethertype: int) -> bytes:
    """Return a flow-mod that sends whole probes of light to the controller."""
    return _punt(Match.of(eth_type=ethertype), PROBE_PRIORITY, cookie)


def _punt(match: Match, priority: int, cookie: int) -> bytes:
    encoded = oxm.encode_match(match)
    return codec.encode_flow_mod(_ADD, encoded, _TO_CONTROLLER, priority=priority, cookie=cookie)


def arp_reply(fabric: Fabric, requester: str, frame: bytes) -> bytes | None:
    """Return the frame that answers an ARP request.

    The controller answers ARP (RFC 826) because it knows every address from the topology.

    Args:
        requester: The server that the frame came from.

    Returns:
        The reply; None if the frame is no request, the address is unknown, or it is one of the
        requester's own, which only checks for duplicates (RFC 5227).
    """
    if len(frame) < _ARP_BYTES or frame[12:14] != _ETHERTYPE or frame[14:20] != _ARP_HEADER:
        return None
    operation, sender_mac, sender, _, target = struct.unpack("!H6sI6sI", frame[20:_ARP_BYTES])
    server = fabric.addressing.server_with(target)
    if operation != _ARP_REQUEST or server is None or server == requester:
        return None
    mac = bytes.fromhex(fabric.addressing.mac(server).replace(":", ""))
    header: bytes = sender_mac + mac + _ETHERTYPE + _ARP_HEADER
    return header + struct.pack("!H6sI6sI", _ARP_REPLY, mac, target, sender_mac, sender)


def packet_out(port: int, frame: bytes) -> bytes:
    """Return a message that sends a frame out of a port."""
    return codec.encode_packet_out(_output(port), frame)


@lru_cache(maxsize=1024)
def _output(port: int) -> bytes:
    return encode_actions((Output(port),))


def error(message: Message) -> tuple[int, str]:
    """Return the transaction number of a request that failed, and why it did."""
    kind, code = message.fields("HH")
    failed = message.tail("HH")
    return int.from_bytes(failed[4:8]), str(_of.ofp_error_code_to_str(kind, code))


def challenge(random: bytes) -> bytes:
    """Return a message that asks a switch for its proof."""
    return codec.encode_message(
        ofp.MessageType.EXPERIMENTER, 0, switch_proof.CHALLENGE_HEAD + random
    )


def proved_id(token: str, random: bytes, message: Message) -> int | None:
    """Return the datapath id that an experimenter message proves; None if it proves nothing."""
    if not message.body.startswith(switch_proof.PROOF_HEAD):
        return None
    return switch_proof.proved_id(token, random, message.body[len(switch_proof.PROOF_HEAD) :])


def deletions_of_others(cookie: int) -> list[bytes]:
    """Return flow-mods that delete every entry with another cookie.

    OpenFlow matches no inequality, but an unequal cookie differs in one of 64 bits.
    """
    every, delete, table = oxm.encode_match(Match()), ofp.FlowCommand.DELETE, ofp.ALL_TABLES
    return [
        codec.encode_flow_mod(delete, every, cookie=~cookie & bit, cookie_mask=bit, table=table)
        for bit in (1 << number for number in range(COOKIE_BITS))
    ]


def counted_match(entry: codec.FlowStats) -> tuple[int, int, int, int | None]:
    """Return the `FlowEntry.match` of the entry that statistics are of."""
    destination = entry.match.get(_TO_NETWORK, bytes(8))
    if address := entry.match.get(_TO_ADDRESS):
        destination = address + b"\xff\xff\xff\xff"
    mark = entry.match.get(_DSCP)
    network, mask = int.from_bytes(destination[:4]), int.from_bytes(destination[4:])
    return entry.priority, network, mask.bit_count(), int.from_bytes(mark) if mark else None
