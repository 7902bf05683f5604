"""Bursts of UDP packets from one host to another, for what queues drop, mark and reorder."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from moefabric.api.links import Host, LinkedHosts

_PORT: Final = 5000
_PAYLOAD: Final = bytes(1000)
_HEADERS: Final = 42
"""Bytes of Ethernet, IPv4 and UDP headers."""
_WAIT_S: Final = 5.0


def frame_bytes() -> int:
    """Return the length of a frame of a burst."""
    return len(_PAYLOAD) + _HEADERS


def send_burst(net: LinkedHosts, tos: Sequence[int]) -> None:
    """Send packets with these type-of-service octets from host 0 to host 1, all at once."""
    near, far = net.hosts
    with _socket(near) as sender:
        for octet in tos:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, octet)
            sender.sendto(_PAYLOAD, (far.address, _PORT))


def received_classes(net: LinkedHosts, tos: Sequence[int]) -> list[int]:
    """Send a burst, and return the octets in the order in which the packets arrive."""
    far = net.hosts[1]
    with ExitStack() as stack:
        receiver = stack.enter_context(_socket(far))
        receiver.bind((far.address, _PORT))
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        receiver.settimeout(_WAIT_S)
        send_burst(net, tos)
        return [receiver.recvmsg(2000, 100)[1][0][2][0] for _ in tos]


def _socket(host: Host) -> socket.socket:
    return host.call(partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
