"""ARP (RFC 826) answered by the controller, which knows every address from the topology."""

import struct

from moefabric.core.topology import Fabric

_REQUEST, _REPLY = 1, 2
_HEADER = struct.pack("!HHBB", 1, 0x0800, 6, 4)  # Ethernet, IPv4, lengths of their addresses
_ETHERTYPE = struct.pack("!H", 0x0806)
_FRAME_BYTES = 42


def reply_to(fabric: Fabric, requester: str, frame: bytes) -> bytes | None:
    """Return the frame that answers an ARP request.

    Args:
        fabric: The fabric, which determines all addresses.
        requester: The server that the frame came from.
        frame: An Ethernet frame.

    Returns:
        The reply; None if the frame is no request, the address is unknown, or it is one of the
        requester's own, which only checks for duplicates (RFC 5227).
    """
    if len(frame) < _FRAME_BYTES or frame[12:14] != _ETHERTYPE or frame[14:20] != _HEADER:
        return None
    operation, sender_mac, sender, _, target = struct.unpack("!H6sI6sI", frame[20:_FRAME_BYTES])
    server = fabric.server_with(target)
    if operation != _REQUEST or server is None or server == requester:
        return None
    mac = bytes.fromhex(fabric.mac(server).replace(":", ""))
    header: bytes = sender_mac + mac + _ETHERTYPE + _HEADER
    return header + struct.pack("!H6sI6sI", _REPLY, mac, target, sender_mac, sender)
