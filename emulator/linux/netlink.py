"""Netlink requests in batches: links, addresses, neighbours, routes, filters (rtnetlink(7)).

A netlink library takes half a millisecond per request, more than the kernel, and a large fabric
needs thousands of requests. Loading such a library takes 0.4 s.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Final, NamedTuple

from moefabric.core.errors import FabricError

DUMP: Final = 0x300
"""Flags of a request for all objects of a kind."""
_REQUEST, _ACK, _ECHO, _REPLACE, _EXCL, _CREATE = 0x1, 0x4, 0x8, 0x100, 0x200, 0x400
ERROR, DONE = 2, 3
_REPLY_S, _REPLY_BYTES = 30, 1 << 18
_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE, _NEW_NEIGHBOUR = 16, 20, 24, 28
_NEW_QDISC, _DELETE_QDISC, _NEW_FILTER = 36, 37, 44
_UP: Final = 1
_ADDRESS, _LOCAL = 1, 2
_NEIGHBOUR_ADDRESS, _NEIGHBOUR_MAC, _PERMANENT = 1, 2, 0x80
_DESTINATION, _OUTPUT, _GATEWAY = 1, 4, 5
_MAIN_TABLE, _STATIC, _EVERYWHERE, _UNICAST = 254, 4, 0, 1
_KIND, _OPTIONS = 1, 2
_BPF_FD, _BPF_NAME, _BPF_FLAGS, _DIRECT_ACTION = 6, 7, 8, 1
_QDISC_PARENT, _QDISC_HANDLE = 0xFFFFFFF1, 0xFFFF0000
_INGRESS_BLOCK, _BLOCK = 13, -1
"""Attribute with the number of a block; index of no interface, in requests about a block."""
_ETH_P_ALL: Final = 0x0003
_ALL_FRAMES: Final = 1 << 16 | socket.htons(_ETH_P_ALL)
"""Priority and protocol of a filter."""
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_ERROR_MESSAGE: Final = 1
"""NLMSGERR_ATTR_MSG: the kernel's error message."""
_MOST_FAULTS: Final = 20
"""Refused requests that an error lists."""
_BATCH_SIZE: Final = 64
"""Requests per call, whose answers fit into any machine's socket buffer."""
_LINK_MAC, _LINK_NAME, _LINK_MTU, _LINK_MASTER, _LINK_INFO = 1, 3, 4, 10, 18
_LINK_NAMESPACE_PID, _LINK_SENT_QUEUES, _LINK_RECEIVED_QUEUES, _LINK_MOST_SEGMENTS = 19, 31, 32, 40
_LINK_MOST_BYTES = 41
_VETH_PEER: Final = 1
HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ATTRIBUTE_KIND: Final = 0x3FFF  # without the flags for nesting and byte order
_TC: Final = struct.Struct("=BxxxiIII")
LINK: Final = struct.Struct("=BxHiII")
"""struct ifinfomsg."""


@dataclass(frozen=True)
class Request:
    """Request to the kernel.

    Attributes:
        place: Part of the fabric that error messages name.
        what: The request in words, for error messages.
        kind: Type of the message.
        flags: Flags of the message, besides NLM_F_REQUEST.
        body: The message without its header.
        ignored_errno: An error that counts as success.
    """

    place: str
    what: str
    kind: int
    flags: int
    body: bytes
    ignored_errno: int = 0

    def encode(self, number: int, flags: int = 0) -> bytes:
        """Return the message with a sequence number and further flags."""
        length = HEADER.size + len(self.body)
        return HEADER.pack(length, self.kind, _REQUEST | flags | self.flags, number, 0) + self.body


class Message(NamedTuple):
    """Message from the kernel: its type, the number of its request, and its body."""

    kind: int
    number: int
    body: bytes


def route_socket() -> socket.socket:
    """Return a socket for requests in the calling thread's network namespace."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)


def _records(
    data: bytes, header: struct.Struct, at: int = 0
) -> Iterator[tuple[Sequence[int], bytes]]:
    """Yield header, without the length that it begins with, and contents of aligned records."""
    while len(data) - at >= header.size:
        length, *fields = header.unpack_from(data, at)
        if length < header.size:
            return
        yield fields, data[at + header.size : at + length]
        at += length + -length % 4


def messages(received: bytes) -> Iterator[Message]:
    """Yield the messages that a socket has received at once."""
    for (kind, _, number, _), body in _records(received, HEADER):
        yield Message(kind, number, body)


def attributes(body: bytes, at: int = 0) -> dict[int, bytes]:
    """Return the attributes from an offset on, by type."""
    return {kind & _ATTRIBUTE_KIND: value for (kind,), value in _records(body, _ATTRIBUTE, at)}


def attribute(kind: int, value: bytes) -> bytes:
    """Encode an attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


class VethEnd(NamedTuple):
    """End of a new veth pair.

    Attributes:
        pid: A process in its network namespace; 0 for the caller's.
        mac: MAC address; empty leaves the choice to the kernel.
        master: Index of the bridge that it joins; 0 for none.
        most_segments: Limit of the packets in a frame; 0 for the kernel's.
        most_bytes: Limit of the bytes in a frame; 0 for the kernel's.
    """

    name: str
    mtu: int
    pid: int = 0
    mac: str = ""
    master: int = 0
    most_segments: int = 0
    most_bytes: int = 0

    def encode(self) -> bytes:
        """Return header and attributes of the interface.

        An interface has one queue each way: veth takes no lock for it, and each further queue costs
        two folders in sysfs.
        """
        numbers = {
            _LINK_MTU: self.mtu,
            _LINK_NAMESPACE_PID: self.pid,
            _LINK_MASTER: self.master,
            _LINK_MOST_SEGMENTS: self.most_segments,
            _LINK_MOST_BYTES: self.most_bytes,
            _LINK_SENT_QUEUES: 1,
            _LINK_RECEIVED_QUEUES: 1,
        }
        body = LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        body += attribute(_LINK_NAME, self.name.encode() + b"\0")
        body += b"".join(
            attribute(kind, struct.pack("=I", number)) for kind, number in numbers.items() if number
        )
        return body + (attribute(_LINK_MAC, packed_mac(self.mac)) if self.mac else b"")


def packed_mac(mac: str) -> bytes:
    """Return the bytes of a MAC address."""
    return bytes.fromhex(mac.replace(":", ""))


def veth(place: str, end: VethEnd, peer: VethEnd) -> Request:
    """Make a veth pair; only its first end can join a bridge."""
    info = attribute(_KIND, b"veth\0")
    info += attribute(_OPTIONS, attribute(_VETH_PEER, peer.encode()))
    body = end.encode() + attribute(_LINK_INFO, info)
    return Request(place, f"veth pair {end.name}, {peer.name}", _NEW_LINK, _CREATE | _EXCL, body)


def link_up(place: str, index: int) -> Request:
    """Switch an interface on."""
    return Request(place, "up", _NEW_LINK, 0, LINK.pack(socket.AF_UNSPEC, 0, index, _UP, _UP))


def link_down(place: str, index: int) -> Request:
    """Switch an interface off; its peer loses its carrier."""
    return Request(place, "down", _NEW_LINK, 0, LINK.pack(socket.AF_UNSPEC, 0, index, 0, _UP))


def address(place: str, index: int, interface_address: str) -> Request:
    """Give an interface an address with prefix length, `10.0.0.1/8`."""
    interface = IPv4Interface(interface_address)
    body = struct.pack("=BBBBi", socket.AF_INET, interface.network.prefixlen, 0, 0, index)
    packed = interface.ip.packed
    body += attribute(_LOCAL, packed) + attribute(_ADDRESS, packed)
    return Request(place, f"address {interface_address}", _NEW_ADDRESS, _CREATE | _EXCL, body)


def neighbour(place: str, index: int, ip: str, mac: str) -> Request:
    """Add a permanent neighbour behind an interface, so that its address needs no ARP request."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _PERMANENT, 0, 0)
    body += attribute(_NEIGHBOUR_ADDRESS, IPv4Address(ip).packed)
    body += attribute(_NEIGHBOUR_MAC, packed_mac(mac))
    return Request(place, f"neighbour {ip}", _NEW_NEIGHBOUR, _CREATE | _REPLACE, body)


def route(place: str, index: int, network: str, gateway: str) -> Request:
    """Add a route to a network by a gateway behind an interface."""
    to = IPv4Network(network)
    kind = _MAIN_TABLE, _STATIC, _EVERYWHERE, _UNICAST
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, to.prefixlen, 0, 0, *kind, 0)
    body += attribute(_DESTINATION, to.network_address.packed)
    body += attribute(_OUTPUT, struct.pack("=i", index))
    body += attribute(_GATEWAY, IPv4Address(gateway).packed)
    return Request(place, f"route {network}", _NEW_ROUTE, _CREATE | _EXCL, body)


def ingress(place: str, index: int, block: int = 0) -> Request:
    """Add an ingress qdisc, which holds filters, to an interface; an existing one stays.

    Args:
        place: Part of the fabric that error messages name.
        index: The interface.
        block: Number of the block of filters that it shares; 0 for one of its own.
    """
    body = _TC.pack(socket.AF_UNSPEC, index, _QDISC_HANDLE, _QDISC_PARENT, 0)
    body += attribute(_KIND, b"ingress\0")
    body += attribute(_INGRESS_BLOCK, struct.pack("=I", block)) if block else b""
    return Request(place, "place for a program", _NEW_QDISC, _CREATE | _EXCL, body, errno.EEXIST)


def delete_ingress(place: str, index: int) -> Request:
    """Delete the ingress qdisc of an interface, if it has one."""
    body = _TC.pack(socket.AF_UNSPEC, index, _QDISC_HANDLE, _QDISC_PARENT, 0)
    return Request(place, "end of a program", _DELETE_QDISC, 0, body, errno.ENOENT)


def block_program(place: str, block: int, program_fd: int, name: str) -> Request:
    """Run a loaded classifier, in direct-action mode, on all interfaces that share a block."""
    options = attribute(_BPF_FD, struct.pack("=I", program_fd))
    options += attribute(_BPF_NAME, name.encode() + b"\0")
    options += attribute(_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION))
    body = _TC.pack(socket.AF_UNSPEC, _BLOCK, 1, block, _ALL_FRAMES)
    body += attribute(_KIND, b"bpf\0") + attribute(_OPTIONS, options)
    what = f"program {name}"
    return Request(place, what, _NEW_FILTER, _CREATE | _EXCL, body, errno.EEXIST)


def execute(requests: Sequence[Request], kernel: socket.socket | None = None) -> None:
    """Send all requests, in order, to the kernel of the calling thread's namespace, or as opened.

    Raises:
        FabricError: Lists the requests that the kernel refused; the others are executed.
    """
    _answers(requests, 0, kernel)


def ask(requests: Sequence[Request], kernel: socket.socket | None = None) -> list[bytes]:
    """Send requests, each for one object, as `execute` does.

    Returns:
        The body of each answer; nothing for an object that doesn't exist.

    Raises:
        FabricError: Lists the requests that the kernel refused.
    """
    return _answers(requests, _ECHO, kernel)  # without it, the kernel tells listeners only


def _answers(
    requests: Sequence[Request], flags: int, opened: socket.socket | None = None
) -> list[bytes]:
    """Send requests in batches; return what answers each of them besides its acknowledgement."""
    faults, bodies = list[str](), [b""] * len(requests)
    with nullcontext(opened) if opened else route_socket() as kernel:
        kernel.settimeout(_REPLY_S)
        for option in (_CAP_ACK, _EXT_ACK):
            kernel.setsockopt(_SOL_NETLINK, option, 1)
        for first in range(0, len(requests), _BATCH_SIZE):
            batch = enumerate(requests[first : first + _BATCH_SIZE], first)
            encoded = [request.encode(number, flags | _ACK) for number, request in batch]
            kernel.send(b"".join(encoded))
            unanswered = len(encoded)
            while unanswered:
                for message in messages(kernel.recv(_REPLY_BYTES)):
                    if message.kind != ERROR:
                        bodies[message.number] = message.body
                        continue
                    unanswered -= 1
                    code, text = _acknowledgement(message.body)
                    request = requests[message.number]
                    if code not in (0, request.ignored_errno):
                        faults.append(f"{request.place}: {request.what}: {text}")
    if faults:
        rest = [f"{len(faults) - _MOST_FAULTS} more"] if len(faults) > _MOST_FAULTS else []
        raise FabricError("; ".join([*faults[:_MOST_FAULTS], *rest]))
    return bodies


def _acknowledgement(body: bytes) -> tuple[int, str]:
    """Return errno and reason of an acknowledgement: 0 and nothing if the request was executed."""
    (code,) = struct.unpack_from("=i", body)
    if not code:
        return 0, ""
    text = attributes(body, 4 + HEADER.size).get(_ERROR_MESSAGE, b"")
    return -code, text.rstrip(b"\0").decode(errors="replace") or os.strerror(-code)
