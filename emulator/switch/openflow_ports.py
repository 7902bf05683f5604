"""The interfaces behind a switch's ports: whether they have carrier, their addresses, and what they have carried."""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from moefabric.errors import FabricError


@dataclass(frozen=True)
class PortCount:
    """Frames, bytes, and frames lost or wrong, since the port was made; in and out as the switch sees it."""

    packets_in: int = 0
    packets_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    dropped_in: int = 0
    dropped_out: int = 0
    errors_in: int = 0
    errors_out: int = 0


@dataclass(frozen=True)
class Interface:
    """An interface as it is now. `rate_kbps` is 0 where nobody has said it."""

    up: bool = True
    address: bytes = bytes(6)
    count: PortCount = PortCount()
    rate_kbps: int = 0


class Interfaces(Protocol):
    """Where switches' ports are looked up, by the names of their interfaces."""

    def look(self, name: str) -> Interface | None:
        """None where there is no such interface (any more)."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `changed` has something, for epoll."""
        ...

    def changed(self) -> Mapping[str, bool]:
        """Interfaces that something has happened to since the last call, and whether they have carrier now. Never waits."""
        ...

    def close(self) -> None: ...


class MemoryInterfaces:
    """Interfaces that are what one says they are; those nobody has spoken of are up."""

    def __init__(self, interfaces: Mapping[str, Interface] | None = None) -> None:
        self._interfaces = dict(interfaces or {})
        self._changed = dict[str, bool]()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def look(self, name: str) -> Interface | None:
        return self._interfaces.get(name, Interface())

    def carrier(self, name: str, *, up: bool) -> None:
        """Give an interface carrier, or take it."""
        self._interfaces[name] = replace(self._interfaces.get(name, Interface()), up=up)
        self._changed[name] = up
        os.eventfd_write(self._bell, 1)

    def fileno(self) -> int:
        return self._bell

    def changed(self) -> Mapping[str, bool]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        changed, self._changed = self._changed, {}
        return changed

    def close(self) -> None:
        """Let go of the bell; twice is no fault."""
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1


_NLMSG: Final = struct.Struct("=IHHII")
_IFINFO: Final = struct.Struct("=BxHiII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_STATISTICS: Final = struct.Struct("=8Q")
_ERROR, _NEWLINK, _DELLINK, _GETLINK = 2, 16, 17, 18
_REQUEST: Final = 1
_ADDRESS, _NAME, _STATISTICS64 = 1, 3, 23
_LINK_GROUP: Final = 1  # RTMGRP_LINK
_UP, _LOWER_UP = 0x1, 0x10000
_ANSWER_S: Final = 2.0
_ANSWER_BYTES: Final = 1 << 16


class KernelInterfaces:
    """Those of the network namespace it is made in (rtnetlink(7))."""

    def __init__(self) -> None:
        self._asked = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._told = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._asked.settimeout(_ANSWER_S)
        self._told.setblocking(False)
        self._told.bind((0, _LINK_GROUP))
        self._number = 0
        self._known = set[str]()

    def look(self, name: str) -> Interface | None:
        """FabricError if the kernel doesn't answer."""
        self._known.add(name)
        self._number = self._number % 0xFFFFFFFF + 1
        said = name.encode() + b"\0"
        attribute = _ATTRIBUTE.pack(4 + len(said), _NAME) + said + bytes(-len(said) % 4)
        body = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute
        self._asked.send(_NLMSG.pack(16 + len(body), _GETLINK, _REQUEST, self._number, 0) + body)
        while True:
            try:
                heard = self._asked.recv(_ANSWER_BYTES)
            except TimeoutError:
                raise FabricError(f"{name}: the kernel says nothing of this interface") from None
            for kind, number, at, end in _answers(heard):
                if number == self._number:
                    return _interface(heard, at, end) if kind == _NEWLINK else None

    def fileno(self) -> int:
        return self._told.fileno()

    def changed(self) -> Mapping[str, bool]:
        changed = dict[str, bool]()
        while True:
            try:
                heard = self._told.recv(_ANSWER_BYTES)
            except BlockingIOError:
                return changed
            except OSError as fault:
                if fault.errno != errno.ENOBUFS:
                    raise FabricError(f"carrier of interfaces: {fault.strerror}") from fault
                changed |= {name: bool((it := self.look(name)) and it.up) for name in self._known}
                continue
            for kind, _, at, end in _answers(heard):
                if kind in {_NEWLINK, _DELLINK} and (name := _attributes(heard, at, end).get(_NAME)):
                    changed[name.rstrip(b"\0").decode()] = kind == _NEWLINK and _is_up(heard, at)

    def close(self) -> None:
        self._asked.close()
        self._told.close()


def _answers(heard: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, number, where the body begins and where it ends, of each message."""
    at = 0
    while len(heard) - at >= _NLMSG.size:
        length, kind, _, number, _ = _NLMSG.unpack_from(heard, at)
        if length < _NLMSG.size:
            return
        yield kind, number, at + _NLMSG.size, at + length
        at += (length + 3) & ~3


def _attributes(heard: bytes, at: int, end: int) -> dict[int, bytes]:
    found, at = dict[int, bytes](), at + _IFINFO.size
    while end - at >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(heard, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind] = heard[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return found


def _is_up(heard: bytes, at: int) -> bool:
    flags: int = _IFINFO.unpack_from(heard, at)[3]
    return bool(flags & _UP and flags & _LOWER_UP)


def _interface(heard: bytes, at: int, end: int) -> Interface:
    found = _attributes(heard, at, end)
    received, sent, bytes_in, bytes_out, errors_in, errors_out, dropped_in, dropped_out = (
        _STATISTICS.unpack_from(found[_STATISTICS64])
    )
    count = PortCount(received, sent, bytes_in, bytes_out, dropped_in, dropped_out, errors_in, errors_out)
    return Interface(_is_up(heard, at), found.get(_ADDRESS, bytes(6)), count)
