"""A watch on the carrier of an interface, as the kernel tells of it."""

import socket
import struct
import time
from types import TracebackType
from typing import Self

from emulator import namespaces

RTMGRP_LINK, RTM_NEWLINK, IFF_LOWER_UP = 1, 16, 0x10000


class CarrierWatch:
    """Changes of the carrier of the interface `nic` in a namespace, with the instant at which each was heard."""

    def __init__(self, netns: str) -> None:
        def there() -> tuple[socket.socket, int]:
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            sock.bind((0, RTMGRP_LINK))
            return sock, socket.if_nametoindex("nic")

        self._sock, self._index = namespaces.within(netns, there)
        self._sock.settimeout(5)
        self._was: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    def until(self, up: bool) -> int:
        """When the carrier has become so (CLOCK_MONOTONIC, ns)."""
        while True:
            said = self._sock.recv(1 << 16)
            at = time.monotonic_ns()
            _, kind, *_ = struct.unpack_from("=IHHII", said)
            _, _, index, flags, _ = struct.unpack_from("=BxHiII", said, 16)
            if kind == RTM_NEWLINK and index == self._index and bool(flags & IFF_LOWER_UP) is up:
                return at
