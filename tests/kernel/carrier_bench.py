"""Observer of an interface's carrier (rtnetlink(7))."""

import socket
import struct
import time
from types import TracebackType
from typing import Self

from moefabric.emulator.linux import namespaces

RTMGRP_LINK, RTM_NEWLINK, IFF_LOWER_UP = 1, 16, 0x10000


class CarrierWatch:
    """Receives changes of the carrier of the interface `nic` in a namespace."""

    def __init__(self, netns: str) -> None:
        def open_socket() -> tuple[socket.socket, int]:
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            sock.bind((0, RTMGRP_LINK))
            return sock, socket.if_nametoindex("nic")

        self._sock, self._index = namespaces.run_in(netns, open_socket)
        self._sock.settimeout(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sock.close()

    def wait(self, up: bool) -> int:
        """Wait for a change to up or down, and return its time (CLOCK_MONOTONIC, ns)."""
        while True:
            message = self._sock.recv(1 << 16)
            at = time.monotonic_ns()
            _, kind, *_ = struct.unpack_from("=IHHII", message)
            _, _, index, flags, _ = struct.unpack_from("=BxHiII", message, 16)
            if kind == RTM_NEWLINK and index == self._index and bool(flags & IFF_LOWER_UP) is up:
                return at
