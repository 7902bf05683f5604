"""Netlink requests in batches: links, addresses, neighbours, routes, programs (rtnetlink(7)).

A netlink library takes half a millisecond per request, more than the kernel, and a large fabric
needs thousands of requests.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Final

from moefabric.core.errors import FabricError

_REQUEST, _ACK, _REPLACE, _EXCL, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_ERROR: Final = 2
_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE, _NEW_NEIGHBOUR = 16, 20, 24, 28
_NEW_QDISC, _NEW_FILTER = 36, 44
_UP: Final = 1
_ADDRESS, _LOCAL = 1, 2
_NEIGHBOUR_ADDRESS, _NEIGHBOUR_MAC, _PERMANENT = 1, 2, 0x80
_DESTINATION, _OUTPUT, _GATEWAY = 1, 4, 5
_MAIN_TABLE, _STATIC, _EVERYWHERE, _UNICAST = 254, 4, 0, 1
_KIND, _OPTIONS = 1, 2
_BPF_CLASSID, _BPF_FD, _BPF_NAME, _BPF_FLAGS, _DIRECT_ACTION = 3, 6, 7, 8, 1
_CLSACT, _CLSACT_HANDLE, _INGRESS = 0xFFFFFFF1, 0xFFFF0000, 0xFFFFFFF2
_ETH_P_ALL: Final = 0x0003
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_ERROR_MESSAGE: Final = 1
"""NLMSGERR_ATTR_MSG: the kernel's error message."""
_BATCH_SIZE: Final = 64
"""Requests per call; the acknowledgements of so many fit into any machine's socket buffer."""
_HEADER: Final = struct.Struct("=IHHII")
_TC: Final = struct.Struct("=BxxxiIII")


@dataclass(frozen=True)
class Request:
    """Request to the kernel.

    Attributes:
        place: part of the fabric that error messages name.
        what: the request in words, for error messages.
        kind: message type.
        flags: flags of the message, besides NLM_F_REQUEST.
        body: bytes after the message's header.
        ignored_errno: an error that counts as success.
    """

    place: str
    what: str
    kind: int
    flags: int
    body: bytes
    ignored_errno: int = 0

    def encode(self, number: int, flags: int = 0) -> bytes:
        """Return the message with a sequence number and further flags."""
        length = _HEADER.size + len(self.body)
        return _HEADER.pack(length, self.kind, _REQUEST | flags | self.flags, number, 0) + self.body


def link_up(place: str, index: int) -> Request:
    """Switch an interface on."""
    return _set_link(place, "up", index, _UP)


def link_down(place: str, index: int) -> Request:
    """Switch an interface off; its peer loses its carrier."""
    return _set_link(place, "down", index, 0)


def _set_link(place: str, what: str, index: int, flags: int) -> Request:
    body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, _UP)
    return Request(place, what, _NEW_LINK, 0, body)


def address(place: str, index: int, interface_address: str) -> Request:
    """Give an interface an address with prefix length, `10.0.0.1/8`."""
    interface = IPv4Interface(interface_address)
    body = struct.pack("=BBBBi", socket.AF_INET, interface.network.prefixlen, 0, 0, index)
    packed = interface.ip.packed
    body += _attribute(_LOCAL, packed) + _attribute(_ADDRESS, packed)
    return Request(place, f"address {interface_address}", _NEW_ADDRESS, _CREATE | _EXCL, body)


def neighbour(place: str, index: int, ip: str, mac: str) -> Request:
    """Add a permanent neighbour behind an interface, so that its address needs no ARP request."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _PERMANENT, 0, 0)
    body += _attribute(_NEIGHBOUR_ADDRESS, IPv4Address(ip).packed)
    body += _attribute(_NEIGHBOUR_MAC, bytes.fromhex(mac.replace(":", "")))
    return Request(place, f"neighbour {ip}", _NEW_NEIGHBOUR, _CREATE | _REPLACE, body)


def route(place: str, index: int, network: str, gateway: str) -> Request:
    """Add a route to a network by a gateway behind an interface."""
    to = IPv4Network(network)
    kind = _MAIN_TABLE, _STATIC, _EVERYWHERE, _UNICAST
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, to.prefixlen, 0, 0, *kind, 0)
    body += _attribute(_DESTINATION, to.network_address.packed)
    body += _attribute(_OUTPUT, struct.pack("=i", index))
    body += _attribute(_GATEWAY, IPv4Address(gateway).packed)
    return Request(place, f"route {network}", _NEW_ROUTE, _CREATE | _EXCL, body)


def clsact(place: str, index: int) -> Request:
    """Add a clsact qdisc, which holds filters, to an interface; an existing one stays."""
    return _filter_qdisc(place, index, b"clsact\0")


def ingress(place: str, index: int) -> Request:
    """Add an ingress qdisc, which holds programs, to an interface; an existing one stays.

    It has one block of filters, and a clsact qdisc two: the kernel walks a list of all blocks of
    the machine for each new one.
    """
    return _filter_qdisc(place, index, b"ingress\0")


def _filter_qdisc(place: str, index: int, kind: bytes) -> Request:
    body = _TC.pack(socket.AF_UNSPEC, index, _CLSACT_HANDLE, _CLSACT, 0)
    body += _attribute(_KIND, kind)
    return Request(place, "place for a program", _NEW_QDISC, _CREATE | _EXCL, body, errno.EEXIST)


def ingress_program(
    place: str, index: int, program_fd: int, name: str, classid: int = 0
) -> Request:
    """Run a loaded classifier, in direct-action mode, on an interface's ingress.

    It replaces the program that was there.
    """
    options = _attribute(_BPF_CLASSID, struct.pack("=I", classid)) if classid else b""
    options += _attribute(_BPF_FD, struct.pack("=I", program_fd))
    options += _attribute(_BPF_NAME, name.encode() + b"\0")
    options += _attribute(_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION))
    protocol_and_priority = 1 << 16 | socket.htons(_ETH_P_ALL)
    body = _TC.pack(socket.AF_UNSPEC, index, 1, _INGRESS, protocol_and_priority)
    body += _attribute(_KIND, b"bpf\0") + _attribute(_OPTIONS, options)
    return Request(place, f"program {name}", _NEW_FILTER, _CREATE | _REPLACE, body)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def execute(requests: Sequence[Request]) -> None:
    """Send all requests, in order, to the kernel in the calling thread's namespace.

    Raises:
        FabricError: lists the requests that the kernel refused; the others are executed.
    """
    faults: list[str] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(30)
        for option in (_CAP_ACK, _EXT_ACK):
            kernel.setsockopt(_SOL_NETLINK, option, 1)
        for first in range(0, len(requests), _BATCH_SIZE):
            faults += _execute_batch(kernel, requests[first : first + _BATCH_SIZE])
    if faults:
        raise FabricError("; ".join(faults))


def _execute_batch(kernel: socket.socket, requests: Sequence[Request]) -> Iterator[str]:
    """Send requests in one call and yield a description of each that fails."""
    kernel.send(b"".join(request.encode(number, _ACK) for number, request in enumerate(requests)))
    unanswered = len(requests)
    while unanswered:
        for number, code, text in parse_acknowledgements(kernel.recv(1 << 18)):
            unanswered -= 1
            request = requests[number]
            if code not in (0, request.ignored_errno):
                yield f"{request.place}: {request.what}: {text or os.strerror(code)}"


def parse_acknowledgements(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield the sequence number, errno and kernel's message of each acknowledgement."""
    offset = 0
    while offset < len(data):
        length, kind, _, number, _ = _HEADER.unpack_from(data, offset)
        if kind == _ERROR:
            (code,) = struct.unpack_from("=i", data, offset + _HEADER.size)
            attributes = data[offset + _HEADER.size + 4 + _HEADER.size : offset + length]
            yield number, -code, _error_text(attributes) if code else ""
        offset += length + -length % 4


def _error_text(attributes: bytes) -> str:
    offset = 0
    while offset + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, offset)
        if kind == _ERROR_MESSAGE:
            return attributes[offset + 4 : offset + length].rstrip(b"\0").decode(errors="replace")
        offset += max(4, length + -length % 4)
    return ""
