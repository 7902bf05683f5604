"""Datagrams between the servers of a running fabric, sent and received by one process a machine.

A socket keeps the network namespace in which it was made. So one process sends from every server,
and 512 servers need neither 512 programs nor entries for ARP. Servers of other machines have their
sockets in the machine services, which the head asks to open them, to send and to receive.
"""

import json
import secrets
import select
import socket
import struct
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric.daemon_protocol import NODES
from moefabric.emulator.fabric.other_machines import Reply, ask_parts
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.emulator.linux import namespaces
from moefabric.runtime.run_directory import FabricWiring, RunDirectory

Pair = tuple[str, str]
"""Sending and receiving server."""
_PAYLOAD: Final = struct.Struct("!8sHH")
_WINDOW: Final = 8192
"""Datagrams under way before arrived ones are read; each server has a few of them."""
_BUFFER_BYTES: Final = 1 << 22
_QUIET_S: Final = 2.0
"""Time without an arrival after which the rest counts as lost."""
_TURN_S: Final = 0.05
"""Longest wait for arrivals on one machine while datagrams may arrive on others."""


class ServerSockets:
    """UDP sockets on the servers that this machine has, except on real hosts."""

    def __init__(self, run_dir: RunDirectory) -> None:
        """Open no sockets yet; `reply` does, as a request to the run directory's part asks."""
        self._run_dir, self._run = run_dir, ""
        self._sockets: dict[str, socket.socket] = {}

    def reply(self, request: Mapping[str, Any]) -> Reply:
        """Return the reply to a request of `FabricSockets`.

        Raises:
            FabricError: if the sockets can't be opened, or belong to a later request.
        """
        if request["step"] == "open":
            self.close()
            try:
                self._open(request["run"])
            except OSError as error:
                raise FabricError(f"datagrams: {error}") from error
            return {"ports": {s: udp.getsockname()[1] for s, udp in self._sockets.items()}}
        if self._run != request["run"]:
            raise FabricError("another check of this fabric has begun: check it again")
        match request["step"]:
            case "send":
                self._send(map(tuple, request["pairs"]), request["ports"], request["dscp"])
                return {}
            case "arrived":
                return {"pairs": sorted(self._arrived(request["wait_s"]))}
            case _:
                self.close()
                return {}

    def _open(self, run: str) -> None:
        wiring = FabricWiring.from_json(self._run_dir.wiring_file.read_bytes())
        pids = json.loads((self._run_dir.path / NODES).read_text())
        fabric, self._run = wiring.fabric, run
        self._names, self._numbers = fabric.servers, fabric.server_index
        self._addresses = {name: fabric.addressing.addresses(name)[0] for name in self._names}
        namespaces.run_in_each(
            (pids[server], partial(self._open_on, server))
            for server in self._names
            if server in pids and server not in wiring.hosts
        )
        self._poll, self._owners = select.poll(), dict[int, str]()
        for server, udp in self._sockets.items():
            self._poll.register(udp, select.POLLIN)
            self._owners[udp.fileno()] = server

    def _open_on(self, server: str) -> None:
        self._sockets[server] = udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            udp.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
        udp.bind((self._addresses[server], 0))
        udp.setblocking(False)

    def _send(self, pairs: Iterable[Pair], ports: Mapping[str, int], dscp: int) -> None:
        """Send a datagram for each pair whose source is on this machine.

        Args:
            pairs: pairs of servers.
            ports: UDP port of each server.
            dscp: mark of the datagrams.
        """
        for udp in self._sockets.values():
            udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        for source, target in pairs:
            if source in self._sockets:
                numbers = self._numbers[source], self._numbers[target]
                payload = _PAYLOAD.pack(self._run.encode(), *numbers)
                with suppress(OSError):  # no room or no route: the datagram counts as lost
                    self._sockets[source].sendto(payload, (self._addresses[target], ports[target]))

    def _arrived(self, wait_s: float) -> set[Pair]:
        """Return the pairs of datagrams that have arrived; wait if there are none."""
        pairs = set[Pair]()
        for fd, _ in self._poll.poll(wait_s * 1e3):
            target = self._owners[fd]
            for payload in _pending(self._sockets[target]):
                run, source, number = _PAYLOAD.unpack(payload)
                if run == self._run.encode() and self._names[number] == target:
                    pairs.add((self._names[source], target))
        return pairs

    def close(self) -> None:
        """Close the sockets."""
        for udp in self._sockets.values():
            udp.close()
        self._sockets, self._run = {}, ""


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


class FabricSockets(ExitStack):
    """UDP sockets on the servers of a running fabric, except on real hosts.

    Attributes:
        servers: Names of the servers.
    """

    def __init__(self, wiring: FabricWiring) -> None:
        """Open the sockets on all machines.

        Raises:
            FabricError: if a server's namespace is gone, or a machine doesn't answer.
        """
        super().__init__()
        self.servers = tuple(s for s in wiring.fabric.servers if s not in wiring.hosts)
        self._run_dir, self._run = named_run_directory(wiring.fabric.name), secrets.token_hex(4)
        self._has_others = self._run_dir.machines_socket.exists()
        self._here, self._ports = ServerSockets(self._run_dir), dict[str, int]()
        with ExitStack() as undo:
            undo.push(self)
            self.callback(self._close)
            for reply in self._ask("open"):
                self._ports |= reply["ports"]
            if missing := [server for server in self.servers if server not in self._ports]:
                raise FabricError(f"no machine has the servers {' '.join(missing)}")
            undo.pop_all()

    def lost(self, pairs: Collection[Pair], dscp: int = 0) -> list[Pair]:
        """Send a datagram for each pair; return the pairs whose datagram hasn't arrived.

        Args:
            pairs: pairs of `servers`.
            dscp: mark of the datagrams, which selects their path; 0 for none.

        Raises:
            FabricError: if a machine doesn't answer.
        """
        listed, arrived = list(pairs), set[Pair]()
        for start in range(0, len(listed), _WINDOW):
            window = listed[start : start + _WINDOW]
            self._ask("send", pairs=window, ports=self._ports, dscp=dscp)
            arrived |= self._arrived(0)
        deadline_s = time.monotonic() + _QUIET_S
        while len(arrived) < len(listed) and (left_s := deadline_s - time.monotonic()) > 0:
            if fresh := self._arrived(left_s) - arrived:
                arrived |= fresh
                deadline_s = time.monotonic() + _QUIET_S
        return [pair for pair in listed if pair not in arrived]

    def _arrived(self, wait_s: float) -> set[Pair]:
        """Return the pairs of datagrams that have arrived on any machine."""
        turn_s = min(wait_s, _TURN_S) if self._has_others else wait_s
        replies = self._ask("arrived", wait_s=turn_s)
        return {(source, target) for reply in replies for source, target in reply["pairs"]}

    def _ask(self, step: str, **details: Any) -> list[Reply]:
        """Return the replies of all machines to a request."""
        request = {"do": "datagrams", "run": self._run, "step": step, **details}
        replies = [self._here.reply(request)]
        if self._has_others:
            others = ask_parts(self._run_dir, request)
            if others.faults:
                raise FabricError("; ".join(others.faults))
            replies += others.parts.values()
        return replies

    def _close(self) -> None:
        with suppress(FabricError):
            self._ask("close")
