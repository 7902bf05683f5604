"""ARP answered from knowledge: a server asks its switch who has an address, and the controller tells it from the wiring (RFC 826)."""

import struct
from collections.abc import Mapping
from ipaddress import IPv4Address

from moefabric.topology import Fabric

_REQUEST, _REPLY = 1, 2
_HEAD = struct.pack("!HHBB", 1, 0x0800, 6, 4)  # Ethernet, IPv4, lengths of their addresses
_ETHERTYPE = struct.pack("!H", 0x0806)


def knowledge(fabric: Fabric) -> dict[int, tuple[str, bytes]]:
    """Every address of the fabric, as a number, with its server and that server's MAC address."""
    return {
        int(IPv4Address(address)): (server, bytes.fromhex(fabric.mac(server).replace(":", "")))
        for server in fabric.servers
        for address in fabric.addresses(server)
    }


def answer(known: Mapping[int, tuple[str, bytes]], asking: str, frame: bytes) -> bytes | None:
    """The frame that answers a request which came from server `asking`.

    None where nothing is to be said: no well-formed request, an address nobody has, or one of the asking server's own (it only makes sure that
    nobody else has it, RFC 5227).
    """
    if len(frame) < 42 or frame[12:14] != _ETHERTYPE or frame[14:20] != _HEAD:
        return None
    operation, sender_mac, sender, _, target = struct.unpack("!H6sI6sI", frame[20:42])
    server, mac = known.get(target, (asking, b""))
    if operation != _REQUEST or server == asking:
        return None
    reply: bytes = struct.pack(
        "!6s6s2s6sH6sI6sI", sender_mac, mac, _ETHERTYPE, _HEAD, _REPLY, mac, target, sender_mac, sender
    )
    return reply
