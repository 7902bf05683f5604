"""Interfaces behind a switch's ports: carrier, addresses and counters."""

import errno
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from moefabric.core.errors import FabricError
from moefabric.emulator.openflow_switch.datapath.memory_datapath import EventSignal


@dataclass(frozen=True)
class PortCount:
    """Counters since the creation of an interface, with directions as seen from the switch."""

    packets_in: int = 0
    packets_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    errors_in: int = 0
    errors_out: int = 0
    dropped_in: int = 0
    dropped_out: int = 0


@dataclass(frozen=True)
class Interface:
    """The present state of an interface. `rate_kbps` is 0 if it is unknown."""

    up: bool = True
    address: bytes = bytes(6)
    count: PortCount = PortCount()
    rate_kbps: int = 0


class Interfaces(Protocol):
    """Access to the interfaces of switches' ports by name."""

    def look(self, name: str) -> Interface | None:
        """Return the state of an interface; None if it doesn't exist.

        Raises:
            FabricError: If the state can't be read.
        """

    def fileno(self) -> int:
        """Return a descriptor that is readable when `changed` has events."""

    def changed(self) -> Mapping[str, bool]:
        """Return the carrier of interfaces with events since the last call; never block."""

    def close(self) -> None:
        """Close the descriptors."""


class MemoryInterfaces:
    """Interfaces in memory. An interface has carrier unless `carrier` changes it."""

    def __init__(self, interfaces: Mapping[str, Interface] | None = None) -> None:
        """Take the states of interfaces; all others have carrier and no traffic."""
        self._interfaces = dict(interfaces or {})
        self._changed = dict[str, bool]()
        self._signal = EventSignal()
        self.fileno, self.close = self._signal.fileno, self._signal.close

    def look(self, name: str) -> Interface | None:
        """See `Interfaces.look`."""
        return self._interfaces.get(name, Interface())

    def carrier(self, name: str, *, up: bool) -> None:
        """Set the carrier of an interface."""
        self._interfaces[name] = replace(self._interfaces.get(name, Interface()), up=up)
        self._changed[name] = up
        self._signal.set()

    def changed(self) -> Mapping[str, bool]:
        """See `Interfaces.changed`."""
        self._signal.clear()
        changed, self._changed = self._changed, {}
        return changed


_NLMSG: Final = struct.Struct("=IHHII")
_IFINFO: Final = struct.Struct("=BxHiII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_STATISTICS: Final = struct.Struct("=8Q")
_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_EVENTS: Final = {_NEWLINK, _DELLINK}
_REQUEST: Final = 1  # NLM_F_REQUEST
_ADDRESS, _NAME, _STATISTICS64 = 1, 3, 23
_LINK_GROUP: Final = 1  # RTMGRP_LINK
_UP, _LOWER_UP = 0x1, 0x10000
_REPLY_TIMEOUT_S: Final = 2.0
_REPLY_BYTES: Final = 1 << 16


class KernelInterfaces:
    """The interfaces of the network namespace in which it is created (rtnetlink(7))."""

    def __init__(self) -> None:
        """Open netlink sockets for requests and for link events."""
        self._requests = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._requests.settimeout(_REPLY_TIMEOUT_S)
        self._events.setblocking(False)
        self._events.bind((0, _LINK_GROUP))
        self.fileno = self._events.fileno
        self._sequence = 0
        self._known = set[str]()

    def look(self, name: str) -> Interface | None:
        """See `Interfaces.look`."""
        self._known.add(name)
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        value = name.encode() + b"\0"
        attribute = _ATTRIBUTE.pack(4 + len(value), _NAME) + value + bytes(-len(value) % 4)
        body = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute
        header = _NLMSG.pack(16 + len(body), _GETLINK, _REQUEST, self._sequence, 0)
        self._requests.send(header + body)
        while True:
            try:
                reply = self._requests.recv(_REPLY_BYTES)
            except TimeoutError:
                raise FabricError(f"{name}: the kernel doesn't reply (rtnetlink)") from None
            for message in _messages(reply):
                if message.sequence == self._sequence:
                    return message.interface() if message.kind == _NEWLINK else None

    def changed(self) -> Mapping[str, bool]:
        """See `Interfaces.changed`."""
        changed = dict[str, bool]()
        while True:
            try:
                received = self._events.recv(_REPLY_BYTES)
            except BlockingIOError:
                return changed
            except OSError as fault:
                if fault.errno != errno.ENOBUFS:
                    raise FabricError(f"carrier of interfaces: {fault.strerror}") from fault
                for name in self._known:  # events were lost
                    changed[name] = bool((interface := self.look(name)) and interface.up)
                continue
            for message in _messages(received):
                if message.kind in _EVENTS and (encoded := message.attributes().get(_NAME)):
                    up = message.kind == _NEWLINK and message.is_up
                    changed[encoded.rstrip(b"\0").decode()] = up

    def close(self) -> None:
        """Close the sockets."""
        self._requests.close()
        self._events.close()


class _LinkMessage(NamedTuple):
    """An rtnetlink message about a link."""

    kind: int
    sequence: int
    body: bytes

    @property
    def is_up(self) -> bool:
        flags: int = _IFINFO.unpack_from(self.body)[3]
        return bool(flags & _UP and flags & _LOWER_UP)

    def attributes(self) -> dict[int, bytes]:
        attributes, at = dict[int, bytes](), _IFINFO.size
        while len(self.body) - at >= _ATTRIBUTE.size:
            length, kind = _ATTRIBUTE.unpack_from(self.body, at)
            if length < _ATTRIBUTE.size:
                break
            attributes[kind] = self.body[at + _ATTRIBUTE.size : at + length]
            at += (length + 3) & ~3
        return attributes

    def interface(self) -> Interface:
        attributes = self.attributes()
        # struct rtnl_link_stats64: received, sent, in and out alternating
        count = PortCount(*_STATISTICS.unpack_from(attributes[_STATISTICS64]))
        return Interface(self.is_up, attributes.get(_ADDRESS, bytes(6)), count)


def _messages(received: bytes) -> Iterator[_LinkMessage]:
    at = 0
    while len(received) - at >= _NLMSG.size:
        length, kind, _, sequence, _ = _NLMSG.unpack_from(received, at)
        if length < _NLMSG.size:
            return
        yield _LinkMessage(kind, sequence, received[at + _NLMSG.size : at + length])
        at += (length + 3) & ~3
