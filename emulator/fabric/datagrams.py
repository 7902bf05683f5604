"""Datagrams between the servers of a running fabric, sent and received by one process.

A socket keeps the network namespace in which it was made. So one process sends from every server,
and 512 servers need neither 512 programs nor entries for ARP.
"""

import json
import secrets
import select
import socket
import struct
import time
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from typing import Final, Self

from moefabric.config.run_directory import FabricWiring
from moefabric.emulator.fabric.daemon_protocol import NODES
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.emulator.linux import namespaces

Pair = tuple[str, str]
"""Sending and receiving server."""
_PAYLOAD: Final = struct.Struct("!8sHH")
_WINDOW: Final = 8192
"""Datagrams under way before arrived ones are read; each server has a few of them."""
_BUFFER_BYTES: Final = 1 << 22
_QUIET_S: Final = 2.0
"""Time without an arrival after which the rest counts as lost."""


class ServerSockets:
    """UDP sockets on the servers of a running fabric, except on real hosts."""

    def __init__(self, wiring: FabricWiring) -> None:
        """Open the sockets.

        Raises:
            FabricError: if a server's namespace is gone.
        """
        fabric = wiring.fabric
        pids = json.loads((named_run_directory(fabric.name).path / NODES).read_text())
        self.servers = tuple(name for name in fabric.servers if name not in wiring.hosts)
        self._sockets: dict[str, socket.socket] = {}
        self._undo, self._run = ExitStack(), secrets.token_bytes(8)
        with ExitStack() as undo:
            namespaces.run_in_each(
                (
                    namespaces.path_of(pids[server]),
                    partial(self._open, undo, server, fabric.addresses(server)[0]),
                )
                for server in self.servers
            )
            self._undo = undo.pop_all()
        self._ends = {server: udp.getsockname() for server, udp in self._sockets.items()}
        self._poll, self._owners = select.poll(), dict[int, str]()
        for server, udp in self._sockets.items():
            self._poll.register(udp, select.POLLIN)
            self._owners[udp.fileno()] = server

    def _open(self, undo: ExitStack, server: str, address: str) -> None:
        udp = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            udp.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
        udp.bind((address, 0))
        udp.setblocking(False)
        self._sockets[server] = udp

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def lost(self, pairs: Collection[Pair], dscp: int = 0) -> list[Pair]:
        """Send a datagram for each pair; return the pairs whose datagram hasn't arrived.

        Args:
            pairs: pairs of `servers`.
            dscp: mark of the datagrams, which selects their path; 0 for none.
        """
        numbers = {server: number for number, server in enumerate(self.servers)}
        for udp in self._sockets.values():
            udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        arrived = set[Pair]()
        for count, (source, target) in enumerate(pairs, start=1):
            payload = _PAYLOAD.pack(self._run, numbers[source], numbers[target])
            try:
                self._sockets[source].sendto(payload, self._ends[target])
            except OSError:  # no room or no route: the datagram counts as lost
                continue
            if count % _WINDOW == 0:
                self._read(arrived, 0)
        deadline_s = time.monotonic() + _QUIET_S
        while len(arrived) < len(pairs) and (left_s := deadline_s - time.monotonic()) > 0:
            if self._read(arrived, left_s):
                deadline_s = time.monotonic() + _QUIET_S
        return [pair for pair in pairs if pair not in arrived]

    def _read(self, arrived: set[Pair], wait_s: float) -> int:
        """Add the pairs of arrived datagrams, and return their number."""
        before = len(arrived)
        for fd, _ in self._poll.poll(wait_s * 1e3):
            target = self._owners[fd]
            for payload in _pending(self._sockets[target]):
                run, source, number = _PAYLOAD.unpack(payload)
                if run == self._run and self.servers[number] == target:
                    arrived.add((self.servers[source], target))
        return len(arrived) - before


def _pending(udp: socket.socket) -> list[bytes]:
    """Return the received datagrams of a socket that have the expected length."""
    payloads: list[bytes] = []
    while True:
        try:
            payload = udp.recv(_PAYLOAD.size + 1)
        except BlockingIOError:
            return payloads
        if len(payload) == _PAYLOAD.size:
            payloads.append(payload)
