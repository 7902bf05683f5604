"""A switch of tc-BPF with hosts on its ports, in namespaces of this test alone."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from emulator import namespaces
from emulator.switch.chassis import Chassis
from emulator.switch.datapath import BpfDatapath
from tests.kernel.optical_bench import Wires

HOSTS = 4
"""Of the bench that tests share."""
ETH_P_ALL = 0x0003
PACKET_OUTGOING, SO_RCVBUFFORCE = 4, 33
SOL_PACKET, PACKET_AUXDATA, TAG_IS_VALID = 263, 8, 1 << 4
AUXILIARY = struct.Struct("=IIIHHHH")
AUXILIARY_BYTES = socket.CMSG_SPACE(AUXILIARY.size)


def tagged_again(frame: bytes, told: bytes) -> bytes:
    """The frame with the tag that the kernel took out and tells of (packet(7), PACKET_AUXDATA)."""
    status, _, _, _, _, tag, protocol = AUXILIARY.unpack(told)
    return frame[:12] + struct.pack(">HH", protocol, tag) + frame[12:] if status & TAG_IS_VALID else frame


@dataclass
class Lab:
    """Hosts 1..N on ports 1..N of a switch. `wires[i]` is host i's NIC, raw: what it sends enters port i."""

    switch: BpfDatapath
    hosts: Wires
    nics: dict[int, socket.socket]

    def send(self, host: int, frame: bytes) -> None:
        self.nics[host].send(frame)

    def heard(self, host: int) -> list[bytes]:
        """What has reached a host since the last call. A veth delivers before send() returns, so none is still under way."""
        found: list[bytes] = []
        while True:
            try:
                frame, told, _, (_, _, kind, *_) = self.nics[host].recvmsg(70_000, AUXILIARY_BYTES)
            except BlockingIOError:
                return found
            if kind != PACKET_OUTGOING:
                found.append(tagged_again(frame, told[0][2]))

    def sent(self, host: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Send a frame, and what has come of it: (host that heard it, frame)."""
        for other in self.nics:
            self.heard(other)
        self.send(host, frame)
        return [(other, each) for other in self.nics for each in self.heard(other)]


def heard_by(bench: Lab, host: int, frame: bytes) -> list[int]:
    return [other for other, _ in bench.sent(host, frame)]


def _raw() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.bind(("nic", ETH_P_ALL))
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)  # a whole test's frames
    sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    sock.setblocking(False)
    return sock


@contextmanager
def lab(hosts: int, chassis: Chassis, number: int = 0, ports: int | None = None) -> Iterator[Lab]:
    """Hosts on the ports of that switch of the chassis; only the first `ports` of them plugged in, if given."""
    with ExitStack() as undo:
        wires = undo.enter_context(Wires(hosts))
        switch = BpfDatapath(chassis, number)
        undo.callback(switch.close)
        there = wires.plug_in()
        switch.attach({port: there[port] for port in list(there)[:ports]}, wires.path(wires.ocs))
        nics = {h: namespaces.within(wires.path(wires.host(h)), partial(_raw)) for h in wires.hosts}
        for nic in nics.values():
            undo.callback(nic.close)
        yield Lab(switch, wires, nics)
