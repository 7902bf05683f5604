"""OpenFlow 1.3 messages as bytes, serialised by Ryu without a switch in hand; their transaction numbers are set when they are sent."""

from typing import Any, Final

from controller.southbound.openflow import shim  # noqa: F401 - it has to come before Ryu
from controller.southbound.openflow.entries import ARP_PRIORITY, PROBE_PRIORITY, Entry

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser
from ryu.ofproto.ofproto_protocol import ProtocolDesc

from moefabric.topology import HOST_PORT

COOKIE_BITS: Final = 64
_ETH_ARP, _ETH_IP = 0x0806, 0x0800


class _Anyone(ProtocolDesc):
    """Whom a message is serialised for: any switch that speaks OpenFlow 1.3."""


_ANY: Final = _Anyone(of.OFP_VERSION)


def numbered(message: bytes, xid: int) -> bytes:
    """The message with that transaction number (OpenFlow 1.3.5, 7.1: bytes 4 to 8)."""
    return message[:4] + xid.to_bytes(4, "big") + message[8:]


def addition(made: Entry, cookie: int) -> bytes:
    """Put an entry in, in place of its namesake if there is one."""
    return _flow_mod(of.OFPFC_ADD, cookie, made.priority, _match(made), made.port)


def deletion(made: Entry) -> bytes:
    """Take exactly this entry out."""
    return _flow_mod(of.OFPFC_DELETE_STRICT, 0, made.priority, _match(made), None)


def arp_to_controller(cookie: int) -> bytes:
    """ARP of the server, and of nobody else, comes to the controller."""
    match = parser.OFPMatch(in_port=HOST_PORT, eth_type=_ETH_ARP)
    return _flow_mod(of.OFPFC_ADD, cookie, ARP_PRIORITY, match, of.OFPP_CONTROLLER)


def probes_to_controller(cookie: int, ethertype: int) -> bytes:
    """Probes of light come to the controller, whole."""
    match = parser.OFPMatch(eth_type=ethertype)
    return _flow_mod(of.OFPFC_ADD, cookie, PROBE_PRIORITY, match, of.OFPP_CONTROLLER)


def packet_out(port: int, frame: bytes) -> bytes:
    """Send a frame out of a port."""
    out = [parser.OFPActionOutput(port)]
    return _serialised(parser.OFPPacketOut(_ANY, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, frame))


def deletions_of_others(cookie: int) -> list[bytes]:
    """Delete every entry whose cookie differs from this one in one bit or more: OpenFlow can't say `not equal`, but 64 of these do."""
    return [
        _serialised(
            parser.OFPFlowMod(
                _ANY,
                cookie=~cookie & (1 << bit),
                cookie_mask=1 << bit,
                table_id=of.OFPTT_ALL,
                command=of.OFPFC_DELETE,
                out_port=of.OFPP_ANY,
                out_group=of.OFPG_ANY,
                match=parser.OFPMatch(),
            )
        )
        for bit in range(COOKIE_BITS)
    ]


def statistics_request() -> bytes:
    """Ask what every entry has carried."""
    return _serialised(
        parser.OFPFlowStatsRequest(_ANY, 0, of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch())
    )


def seen_match(flow: Any) -> tuple[int, int, int, int | None]:
    """The entry that a flow's statistics are of, as `Entry.match` has it."""
    fields = dict(flow.match.items())
    to = fields.get("ipv4_dst", ("", "0.0.0.0"))  # noqa: S104 - a mask
    address, mask = to if isinstance(to, tuple) else (to, "255.255.255.255")
    return flow.priority, _number(address or mask), _number(mask).bit_count(), fields.get("ip_dscp")


def _flow_mod(command: int, cookie: int, priority: int, match: Any, port: int | None) -> bytes:
    actions = [] if port is None else [parser.OFPActionOutput(port, of.OFPCML_NO_BUFFER)]
    return _serialised(
        parser.OFPFlowMod(
            _ANY,
            cookie=cookie,
            command=command,
            priority=priority,
            out_port=of.OFPP_ANY,
            out_group=of.OFPG_ANY,
            match=match,
            instructions=[parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, actions)] if actions else [],
        )
    )


def _match(made: Entry) -> Any:
    mask = (0xFFFFFFFF << (32 - made.length)) & 0xFFFFFFFF
    marked = {} if made.dscp is None else {"ip_dscp": made.dscp}
    return parser.OFPMatch(eth_type=_ETH_IP, ipv4_dst=(made.network, mask), **marked)


def _number(address: str) -> int:
    return int.from_bytes(bytes(map(int, address.split("."))), "big")


def _serialised(message: Any) -> bytes:
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


BARRIER: Final = _serialised(parser.OFPBarrierRequest(_ANY))
