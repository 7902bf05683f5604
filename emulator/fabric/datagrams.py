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


class ServerSockets(ExitStack):
    """UDP sockets on the servers that this machine has, except on real hosts.

    Attributes:
        run: Eight letters that tell these datagrams from those of others.
        ports: UDP port of each server's socket.
    """

    def __init__(self, wiring: FabricWiring, run: str) -> None:
        """Open the sockets.

        Raises:
            FabricError: if a server's namespace is gone.
        """
        super().__init__()
        fabric, self.run = wiring.fabric, run
        pids = json.loads((named_run_directory(fabric.name).path / NODES).read_text())
        self._names = fabric.servers
        self._numbers = fabric.server_index
        self._addresses = {name: fabric.addressing.addresses(name)[0] for name in self._names}
        self._sockets: dict[str, socket.socket] = {}
        with ExitStack() as undo:
            undo.push(self)
            namespaces.run_in_each(
                (pids[server], partial(self._open, server))
                for server in self._names
                if server in pids and server not in wiring.hosts
            )
            undo.pop_all()
        self.ports = {server: udp.getsockname()[1] for server, udp in self._sockets.items()}
        self._poll, self._owners = select.poll(), dict[int, str]()
        for server, udp in self._sockets.items():
            self._poll.register(udp, select.POLLIN)
            self._owners[udp.fileno()] = server

    def _open(self, server: str) -> None:
        udp = self.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            udp.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
        udp.bind((self._addresses[server], 0))
        udp.setblocking(False)
        self._sockets[server] = udp

    def send(self, pairs: Iterable[Pair], ports: Mapping[str, int], dscp: int) -> None:
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
                payload = _PAYLOAD.pack(self.run.encode(), *numbers)
                with suppress(OSError):  # no room or no route: the datagram counts as lost
                    self._sockets[source].sendto(payload, (self._addresses[target], ports[target]))

    def arrived(self, wait_s: float) -> set[Pair]:
        """Return the pairs of datagrams that have arrived; wait if there are none."""
        pairs = set[Pair]()
        for fd, _ in self._poll.poll(wait_s * 1e3):
            target = self._owners[fd]
            for payload in _pending(self._sockets[target]):
                run, source, number = _PAYLOAD.unpack(payload)
                if run == self.run.encode() and self._names[number] == target:
                    pairs.add((self._names[source], target))
        return pairs


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
        with ExitStack() as undo:
            undo.push(self)
            self._here = self.enter_context(ServerSockets(wiring, self._run))
            self.callback(self._close_others)
            self._ports = dict(self._here.ports)
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
            self._here.send(window, self._ports, dscp)
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
        pairs = self._here.arrived(turn_s)
        for reply in self._ask("arrived", wait_s=turn_s):
            pairs |= set(map(tuple, reply["pairs"]))
        return pairs

    def _ask(self, step: str, **details: Any) -> list[Reply]:
        """Return the replies of all other machines to a request."""
        if not self._has_others:
            return []
        request = {"do": "datagrams", "run": self._run, "step": step, **details}
        replies = ask_parts(self._run_dir, request)
        if replies.faults:
            raise FabricError("; ".join(replies.faults))
        return list(replies.parts.values())

    def _close_others(self) -> None:
        with suppress(FabricError):
            self._ask("close")


class PartDatagrams:
    """The sockets of one machine's servers, as the head asks for them.

    Args:
        run_dir: Run directory of the machine's part.
    """

    def __init__(self, run_dir: RunDirectory) -> None:
        self._run_dir = run_dir
        self._sockets: ServerSockets | None = None

    def reply(self, message: Mapping[str, Any]) -> Reply:
        """Return the reply to a request of `FabricSockets`.

        Raises:
            FabricError: if the sockets can't be opened, or belong to a later request.
        """
        if message["step"] == "open":
            return {"ports": self._open(message["run"])}
        if self._sockets is None or self._sockets.run != message["run"]:
            raise FabricError("another check of this fabric has begun: check it again")
        match message["step"]:
            case "send":
                self._sockets.send(map(tuple, message["pairs"]), message["ports"], message["dscp"])
                return {}
            case "arrived":
                return {"pairs": sorted(self._sockets.arrived(message["wait_s"]))}
            case _:
                self.close()
                return {}

    def _open(self, run: str) -> Mapping[str, int]:
        self.close()
        try:
            wiring = FabricWiring.from_json(self._run_dir.wiring_file.read_text())
            self._sockets = ServerSockets(wiring, run)
        except OSError as error:
            raise FabricError(f"datagrams: {error}") from error
        return self._sockets.ports

    def close(self) -> None:
        """Close the sockets."""
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None
