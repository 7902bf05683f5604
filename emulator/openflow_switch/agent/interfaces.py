"""Interfaces behind a switch's ports: carrier, addresses and counters."""

import errno
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from moefabric.core.errors import FabricError
from moefabric.emulator.linux import netlink


@dataclass(frozen=True)
class Interface:
    """The present state of an interface.

    Attributes:
        up: Whether it has carrier.
        address: Its MAC address.
        counts: Packets, bytes, errors and drops since its creation, each as the switch sees them:
            in, then out.
    """

    up: bool = True
    address: bytes = bytes(6)
    counts: tuple[int, ...] = (0,) * 8


class Interfaces(Protocol):
    """Access to the interfaces of switches' ports by name."""

    def look(self, name: str) -> Interface:
        """Return the state of an interface; without carrier if it doesn't exist.

        Raises:
            FabricError: If the state can't be read.
        """

    def fileno(self) -> int:
        """Return a descriptor that is readable when `changed` has events."""

    def changed(self) -> Mapping[str, bool]:
        """Return the carrier of interfaces with events since the last call; never block."""


_STATISTICS: Final = struct.Struct("=8Q")  # the first fields of struct rtnl_link_stats64
_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_ADDRESS, _NAME, _STATISTICS64 = 1, 3, 23
_LINK_GROUP: Final = 1  # RTMGRP_LINK
_UP, _LOWER_UP = 0x1, 0x10000
_REPLY_BYTES: Final = 1 << 16


class KernelInterfaces:
    """The interfaces of the network namespace in which it is created (rtnetlink(7))."""

    def __init__(self) -> None:
        """Open netlink sockets for requests and for link events."""
        self._requests, self._events = netlink.route_socket(), netlink.route_socket()
        self._events.setblocking(False)
        self.fileno = self._events.fileno
        self._known = set[str]()

    def look(self, name: str) -> Interface:
        """See `Interfaces.look`."""
        if not self._known:  # earlier events are of no switch, and a large fabric has many
            self._events.bind((0, _LINK_GROUP))
        self._known.add(name)
        body = netlink.LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        body += netlink.attribute(_NAME, name.encode() + b"\0")
        request = netlink.Request(name, "state", _GETLINK, 0, body, errno.ENODEV)
        [link] = netlink.ask([request], self._requests)
        if not link:
            return Interface(up=False)
        attributes = netlink.attributes(link, netlink.LINK.size)
        counts = _STATISTICS.unpack_from(attributes[_STATISTICS64])
        return Interface(_is_up(link), attributes.get(_ADDRESS, bytes(6)), counts)

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
                    changed[name] = self.look(name).up
                continue
            for message in netlink.messages(received):
                named = netlink.attributes(message.body, netlink.LINK.size).get(_NAME)
                if message.kind in {_NEWLINK, _DELLINK} and named:
                    up = message.kind == _NEWLINK and _is_up(message.body)
                    changed[named.rstrip(b"\0").decode()] = up


def _is_up(link: bytes) -> bool:
    flags: int = netlink.LINK.unpack_from(link)[3]
    return bool(flags & _UP and flags & _LOWER_UP)
