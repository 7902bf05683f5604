"""Netlink in batches: many requests to the kernel about its interfaces in few calls, each answered for by itself (rtnetlink(7)).

Libraries take half a millisecond of Python for a request, which is longer than the kernel takes, and a large fabric has thousands.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Final

from moefabric.errors import FabricError

_REQUEST, _ACK, _REPLACE, _EXCL, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_ERROR: Final = 2
_NEW_LINK, _NEW_ADDRESS, _NEW_NEIGHBOUR, _NEW_QDISC, _NEW_FILTER = 16, 20, 28, 36, 44
_UP: Final = 1
_ADDRESS, _LOCAL = 1, 2
_NEIGHBOUR_ADDRESS, _NEIGHBOUR_MAC, _PERMANENT = 1, 2, 0x80
_KIND, _OPTIONS = 1, 2
_BPF_CLASSID, _BPF_FD, _BPF_NAME, _BPF_FLAGS, _DIRECT_ACTION = 3, 6, 7, 8, 1
_CLSACT, _CLSACT_HANDLE, _INGRESS = 0xFFFFFFF1, 0xFFFF0000, 0xFFFFFFF2
_ETH_P_ALL: Final = 0x0003
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_SAID: Final = 1
"""NLMSGERR_ATTR_MSG: the kernel's own words."""
_AT_ONCE: Final = 64
"""Requests to a call: their answers fit into a socket's buffer of any size that a machine has."""
_HEADER: Final = struct.Struct("=IHHII")
_TC: Final = struct.Struct("=BxxxiIII")


@dataclass(frozen=True)
class Request:
    """What is asked of the kernel: `place` in the fabric and `what` it is, for a fault's sake; `spared` is an errno that is none."""

    place: str
    what: str
    kind: int
    flags: int
    body: bytes
    spared: int = 0


def up(place: str, index: int) -> Request:
    """Switch an interface on."""
    body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, _UP, _UP)
    return Request(place, "up", _NEW_LINK, 0, body)


def down(place: str, index: int) -> Request:
    """Switch an interface off; its far end loses its carrier."""
    body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, 0, _UP)
    return Request(place, "down", _NEW_LINK, 0, body)


def address(place: str, index: int, given: str) -> Request:
    """Give an interface an address with prefix length, `10.0.0.1/8`."""
    interface = IPv4Interface(given)
    body = struct.pack("=BBBBi", socket.AF_INET, interface.network.prefixlen, 0, 0, index)
    packed = interface.ip.packed
    body += _attribute(_LOCAL, packed) + _attribute(_ADDRESS, packed)
    return Request(place, f"address {given}", _NEW_ADDRESS, _CREATE | _EXCL, body)


def neighbour(place: str, index: int, known: str, mac: str) -> Request:
    """Have it known for good who has an address, behind an interface: nobody is asked, and no table of the kernel overflows."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _PERMANENT, 0, 0)
    body += _attribute(_NEIGHBOUR_ADDRESS, IPv4Address(known).packed)
    body += _attribute(_NEIGHBOUR_MAC, bytes.fromhex(mac.replace(":", "")))
    return Request(place, f"neighbour {known}", _NEW_NEIGHBOUR, _CREATE | _REPLACE, body)


def ingress(place: str, index: int) -> Request:
    """See that an interface has a place for programs (clsact); one that is there is kept."""
    body = _TC.pack(socket.AF_UNSPEC, index, _CLSACT_HANDLE, _CLSACT, 0) + _attribute(_KIND, b"clsact\0")
    return Request(place, "place for a program", _NEW_QDISC, _CREATE | _EXCL, body, errno.EEXIST)


def ingress_program(place: str, index: int, program_fd: int, name: str, classid: int = 0) -> Request:
    """Run a loaded classifier, which decides by itself, on what an interface hears; it replaces the one before."""
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


def ask(requests: Sequence[Request]) -> None:
    """Have the kernel do all of them, in order, in the calling thread's namespace. FabricError names each that it refused."""
    faults: list[str] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(30)
        for option in (_CAP_ACK, _EXT_ACK):
            kernel.setsockopt(_SOL_NETLINK, option, 1)
        for begin in range(0, len(requests), _AT_ONCE):
            faults += _ask_some(kernel, requests[begin : begin + _AT_ONCE])
    if faults:
        raise FabricError("; ".join(faults))


def _ask_some(kernel: socket.socket, requests: Sequence[Request]) -> Iterator[str]:
    """What the kernel has against these requests."""
    kernel.send(b"".join(_message(number, request) for number, request in enumerate(requests)))
    unanswered = len(requests)
    while unanswered:
        for number, code, said in _answers(kernel.recv(1 << 18)):
            unanswered -= 1
            request = requests[number]
            if code not in (0, request.spared):
                yield f"{request.place}: {request.what}: {said or os.strerror(code)}"


def _message(number: int, request: Request) -> bytes:
    flags = _REQUEST | _ACK | request.flags
    return _HEADER.pack(_HEADER.size + len(request.body), request.kind, flags, number, 0) + request.body


def _answers(heard: bytes) -> Iterator[tuple[int, int, str]]:
    """The request's number, errno and the kernel's words of each acknowledgement."""
    at = 0
    while at < len(heard):
        length, kind, _, number, _ = _HEADER.unpack_from(heard, at)
        if kind == _ERROR:
            (code,) = struct.unpack_from("=i", heard, at + _HEADER.size)
            words = heard[at + _HEADER.size + 4 + _HEADER.size : at + length]
            yield number, -code, _words(words) if code else ""
        at += length + -length % 4


def _words(attributes: bytes) -> str:
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if kind == _SAID:
            return attributes[at + 4 : at + length].rstrip(b"\0").decode(errors="replace")
        at += max(4, length + -length % 4)
    return ""
