"""A tc-BPF switch with hosts on its ports, in network namespaces of a test."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

from moefabric.emulator.linux import namespaces
from moefabric.emulator.openflow_switch.datapath.bpf_datapath import BpfDatapath, SharedProgram
from tests.kernel.optical_bench import HostNetwork

HOSTS = 4
"""Number of hosts of the shared bench."""
ETH_P_ALL = 0x0003
PACKET_OUTGOING, SO_RCVBUFFORCE = 4, 33
SOL_PACKET, PACKET_AUXDATA, TAG_IS_VALID = 263, 8, 1 << 4
AUXILIARY = struct.Struct("=IIIHHHH")
AUXILIARY_BYTES = socket.CMSG_SPACE(AUXILIARY.size)


def with_tag(frame: bytes, auxiliary: bytes) -> bytes:
    """The frame with the tag that the kernel removed (packet(7), PACKET_AUXDATA)."""
    status, _, _, _, _, tag, protocol = AUXILIARY.unpack(auxiliary)
    return (
        frame[:12] + struct.pack(">HH", protocol, tag) + frame[12:]
        if status & TAG_IS_VALID
        else frame
    )


@dataclass
class Lab:
    """Hosts 1 to N on ports 1 to N of a switch; `nics` are raw sockets on the hosts' NICs."""

    switch: BpfDatapath
    program: SharedProgram
    hosts: HostNetwork
    nics: dict[int, socket.socket]

    def send(self, host: int, frame: bytes) -> None:
        self.nics[host].send(frame)

    def heard(self, host: int) -> list[bytes]:
        """Takes the frames that have reached a host; veth delivers before send() returns."""
        frames: list[bytes] = []
        while True:
            try:
                frame, auxiliary, _, (_, _, kind, *_) = self.nics[host].recvmsg(
                    70_000, AUXILIARY_BYTES
                )
            except BlockingIOError:
                return frames
            if kind != PACKET_OUTGOING:
                frames.append(with_tag(frame, auxiliary[0][2]))

    def sent(self, host: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Sends a frame, and returns what arrives: (host, frame)."""
        for other in self.nics:
            self.heard(other)
        self.send(host, frame)
        return [(other, arrived) for other in self.nics for arrived in self.heard(other)]


def attach(bench: Lab, interfaces: dict[int, str], switch: BpfDatapath) -> None:
    """Attaches further interfaces of the bench to a switch of its program."""
    namespaces.run_in(bench.hosts.path(bench.hosts.ocs), partial(switch.attach, interfaces))


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
def lab(hosts: int, ports: int | None = None) -> Iterator[Lab]:
    """Attaches hosts to the first of two switches, or only the first `ports` of them."""
    with ExitStack() as undo:
        wires = undo.enter_context(HostNetwork(hosts))
        there = wires.plug_in()
        made = namespaces.run_in(wires.path(wires.ocs), partial(SharedProgram, 2, flows=256))
        program = undo.enter_context(closing(made))
        switch = undo.enter_context(closing(BpfDatapath(program, 0)))
        interfaces = {port: there[port] for port in list(there)[:ports]}
        namespaces.run_in(wires.path(wires.ocs), partial(switch.attach, interfaces))
        nics = {h: namespaces.run_in(wires.path(wires.host(h)), partial(_raw)) for h in wires.hosts}
        for nic in nics.values():
            undo.callback(nic.close)
        yield Lab(switch, program, wires, nics)
