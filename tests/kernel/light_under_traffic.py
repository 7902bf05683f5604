"""Random matchings one after the other, each commanded while every host sends to every other."""

import random
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from emulator.light import Ports
from emulator.mirrors import BPF, Mirrors
from emulator.plant import Plant, listening_within
from tests.kernel.optical_bench import Wires, address, missing_for_kernel_tests

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

Matching = dict[int, int]
"""Circuits, both ways: host by host."""


@dataclass
class Seen:
    """What became of the frames. A frame is (matching's number, sender, the host it was for)."""

    astray: list[str] = field(default_factory=list)
    lost_untouched: list[str] = field(default_factory=list)
    delivered: int = 0


@dataclass(frozen=True)
class MatchedUnderTraffic:
    """A switch with a host on each port."""

    hosts: int
    settle_ns: int

    def played(self, folder: Path, matchings: int, source: random.Random) -> Seen:
        """Play so many matchings; what was seen."""
        with ExitStack() as held:
            wires = held.enter_context(Wires(self.hosts))
            there = wires.path(wires.ocs)
            mirrors = Mirrors(BPF, Ports(self.hosts, self.hosts), wires.plug_in(), there)
            held.callback(mirrors.close)
            listener = held.enter_context(listening_within(None, "127.0.0.1", 0))
            facts = {**mirrors.facts, "settle_ns": self.settle_ns, "serial": "1"}
            plant = Plant(folder / "ocs0.plant", facts, (mirrors.fd, listener.fileno()))
            held.callback(plant.close)
            command = [sys.executable, "-m", "emulator.ocs", "--plant", str(plant.path)]
            process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
            held.callback(process.wait, 10)
            held.callback(process.terminate)
            plant.wait_ready(deadline_s=20)
            client = held.enter_context(socket.create_connection(listener.getsockname(), timeout=5))
            client.setblocking(False)
            return self._matched(wires, client, matchings, source)

    def _matched(self, wires: Wires, client: socket.socket, matchings: int, source: random.Random) -> Seen:
        seen, before = Seen(), Matching()
        sockets = {host: wires.udp(host) for host in wires.hosts}
        for sock in sockets.values():
            sock.setblocking(False)
        for number in range(matchings):
            after = self._next(before, source)
            client.sendall(self._command(after))
            settled = False
            while not settled:
                self._send(sockets, number)
                settled = self._is_told(client)
                self._hear(sockets, seen, number, before, after, settled=False)
            self._send(sockets, number)
            self._hear(sockets, seen, number, before, after, settled=True)
            before = after
        return seen

    def _next(self, before: Matching, source: random.Random) -> Matching:
        """Some circuits stay, the other hosts are matched anew, or not."""
        kept = {a: b for a, b in before.items() if a < b and source.random() < 0.5}
        free = [host for host in range(1, self.hosts + 1) if host not in {*kept, *kept.values()}]
        source.shuffle(free)
        new = dict(zip(free[::2], free[1::2], strict=False))
        pairs = kept | {a: b for a, b in new.items() if source.random() < 0.8}
        return pairs | {b: a for a, b in pairs.items()}

    def _command(self, matching: Matching) -> bytes:
        ins, outs = ",".join(map(str, matching)), ",".join(str(self.hosts + b) for b in matching.values())
        return f":oxc:swit:conn:only (@{ins}),(@{outs});*opc?\n".encode()

    def _send(self, sockets: dict[int, socket.socket], number: int) -> None:
        for host, sock in sockets.items():
            for other in sockets.keys() - {host}:
                sock.sendto(b"%d %d" % (number, host), address(other))

    def _is_told(self, client: socket.socket) -> bool:
        try:
            return client.recv(16) == b"1\n"
        except BlockingIOError:
            return False

    def _hear(
        self,
        sockets: dict[int, socket.socket],
        seen: Seen,
        number: int,
        before: Matching,
        after: Matching,
        *,
        settled: bool,
    ) -> None:
        """A round of frames: from its own circuit's other end alone, and surely from one that stays."""
        for host, sock in sockets.items():
            senders = set()
            while (said := _said(sock)) is not None:
                at, sender = map(int, said.split())
                senders.add(sender)
                seen.delivered += 1
                allowed = {after.get(host)} if settled else {before.get(host), after.get(host)}
                if at != number or sender not in allowed:
                    seen.astray.append(f"{number}: {sender} to {host}, joined to {allowed}")
            stays = after.get(host) is not None and before.get(host) == after.get(host)
            if (stays or (settled and host in after)) and after[host] not in senders:
                seen.lost_untouched.append(f"{number}: {after[host]} to {host}")


def _said(sock: socket.socket) -> bytes | None:
    try:
        return sock.recv(64)
    except BlockingIOError:
        return None
