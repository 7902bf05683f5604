"""Random matchings one after the other, while every host sends to every other."""

import random
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from moefabric.emulator.ocs.fd_handoff import listen_in_namespace
from tests.kernel.optical_bench import HostNetwork, address
from tests.support.ocs_process import ocs_process

Matching = dict[int, int]
"""The peer of each host with a circuit, in both directions."""


@dataclass
class Deliveries:
    """Fate of the frames. A frame carries the number of its matching and its sender."""

    misdelivered: list[str] = field(default_factory=list)
    lost_untouched: list[str] = field(default_factory=list)
    """Frames lost on circuits that stayed, or had settled."""
    delivered: int = 0


@dataclass(frozen=True)
class MatchingsUnderTraffic:
    """A switch with a host on each port."""

    hosts: int
    settle_ns: int

    def run(self, folder: Path, matchings: int, source: random.Random) -> Deliveries:
        """Command this many random matchings under traffic."""
        with ExitStack() as resources:
            network = resources.enter_context(HostNetwork(self.hosts))
            fd = network.crossbar().fd
            listener = resources.enter_context(listen_in_namespace(None, "127.0.0.1", 0))
            profile = {"settle": {"fixed_ns": self.settle_ns}}
            facts = {"ports": self.hosts, "profile": profile, "serial": "1"}
            fds = (fd, listener.fileno())
            resources.enter_context(ocs_process(folder, facts, fds))
            client = resources.enter_context(
                socket.create_connection(listener.getsockname(), timeout=5)
            )
            client.setblocking(False)
            return self._run(network, client, matchings, source)

    def _run(
        self, network: HostNetwork, client: socket.socket, matchings: int, source: random.Random
    ) -> Deliveries:
        deliveries, before = Deliveries(), Matching()
        sockets = {host: network.udp(host) for host in network.hosts}
        for sock in sockets.values():
            sock.setblocking(False)
        for number in range(matchings):
            after = self._next_matching(before, source)
            client.sendall(self._command(after))
            settled = False
            while not settled:
                self._send_all(sockets, number)
                settled = _receive(client) == b"1\n"
                self._check(sockets, deliveries, number, before, after, settled=False)
            self._send_all(sockets, number)
            self._check(sockets, deliveries, number, before, after, settled=True)
            before = after
        return deliveries

    def _next_matching(self, before: Matching, source: random.Random) -> Matching:
        """Keep about half of the circuits, and match most of the other hosts."""
        stays = {a: b for a, b in before.items() if a < b and source.random() < 0.5}
        free = [host for host in range(1, self.hosts + 1) if host not in {*stays, *stays.values()}]
        source.shuffle(free)
        new = dict(zip(free[::2], free[1::2], strict=False))
        pairs = stays | {a: b for a, b in new.items() if source.random() < 0.8}
        return pairs | {b: a for a, b in pairs.items()}

    def _command(self, matching: Matching) -> bytes:
        ins = ",".join(map(str, matching))
        outs = ",".join(str(self.hosts + peer) for peer in matching.values())
        return f":oxc:swit:conn:only (@{ins}),(@{outs});*opc?\n".encode()

    def _send_all(self, sockets: dict[int, socket.socket], number: int) -> None:
        for host, sock in sockets.items():
            for other in sockets.keys() - {host}:
                sock.sendto(b"%d %d" % (number, host), address(other))

    def _check(
        self,
        sockets: dict[int, socket.socket],
        deliveries: Deliveries,
        number: int,
        before: Matching,
        after: Matching,
        *,
        settled: bool,
    ) -> None:
        """Receive a round of frames, which only the peers of a host may send to it."""
        for host, sock in sockets.items():
            senders = set()
            while (frame := _receive(sock)) is not None:
                at, sender = map(int, frame.split())
                senders.add(sender)
                deliveries.delivered += 1
                peers = {after.get(host)} if settled else {before.get(host), after.get(host)}
                if at != number or sender not in peers:
                    deliveries.misdelivered.append(f"{number}: {sender} to {host}, not {peers}")
            stays = after.get(host) is not None and before.get(host) == after.get(host)
            if (stays or (settled and host in after)) and after[host] not in senders:
                deliveries.lost_untouched.append(f"{number}: {after[host]} to {host}")


def _receive(sock: socket.socket) -> bytes | None:
    try:
        return sock.recv(64)
    except BlockingIOError:
        return None
