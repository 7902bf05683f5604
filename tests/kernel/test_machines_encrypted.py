"""One fabric on two machines whose addresses are those of WireGuard interfaces."""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from moefabric.emulator.fabric.tunnels import TUNNEL_HEADERS
from moefabric.emulator.linux import namespaces
from tests.kernel.switch_bench import ETH_P_ALL, SO_RCVBUFFORCE
from tests.support.machine_namespaces import NamespaceMachine, machine_namespaces
from tests.support.placed_fabrics import PlacedFabric, machine_service, placed_fabric
from tests.support.wireguard import WIREGUARD_HEADERS, WIREGUARD_PORT, encrypted

pytestmark = [
    pytest.mark.nightly  # wireguard-tools
]
Machines = dict[str, NamespaceMachine]
MTU: Final = 1500
PATTERN: Final = b"moefabric's ping"
"""As long as a pattern of ping may be."""
ICMP_HEADERS: Final = 28
VXLAN_PORT: Final = 4789
ETHERNET: Final = 14
"""Bytes of an Ethernet header."""
MULTICAST: Final = 224
"""First number of the lowest multicast address."""
FRAGMENT: Final = 0x3FFF
"""More fragments, or an offset (RFC 791)."""


@dataclass
class Capture:
    """Frames on a machine's link to the others.

    Attributes:
        frames: All frames of both directions.
    """

    frames: list[bytes] = field(default_factory=list)

    @property
    def packets(self) -> list[bytes]:
        """The IPv4 packets from machine to machine; the bridge between them sends multicast."""
        packets = [one[ETHERNET:] for one in self.frames if one[12:14] == b"\x08\x00"]
        return [one for one in packets if one[16] < MULTICAST]

    @property
    def destinations(self) -> set[tuple[int, int]]:
        """Protocols and destination ports."""
        return {
            (one[9], struct.unpack_from("!H", one, 4 * (one[0] & 15) + 2)[0])
            for one in self.packets
        }

    @property
    def fragments(self) -> int:
        """Number of fragments."""
        return sum(bool(struct.unpack_from("!H", one, 6)[0] & FRAGMENT) for one in self.packets)

    @property
    def has_pattern(self) -> bool:
        """Whether any frame has the payload of the pings in clear text."""
        return any(PATTERN in frame for frame in self.frames)


def packet_socket() -> socket.socket:
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    frames.bind(("eth0", ETH_P_ALL))
    frames.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)  # a whole test's frames
    frames.setblocking(False)
    return frames


@contextmanager
def captured(machine: NamespaceMachine) -> Iterator[Capture]:
    """Capture the frames of a machine's link, which are known when the context ends."""
    capture = Capture()
    with closing(namespaces.run_in(f"/proc/{machine.pid}/ns/net", packet_socket)) as frames:
        yield capture
        with suppress(BlockingIOError):
            while frame := frames.recv(1 << 16):
                capture.frames.append(frame)


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with machine_namespaces(["head", "m1"], MTU) as both:
        yield both


def ping(fabric: PlacedFabric, sender: str, receiver: str, mtu: int) -> None:
    """Send a packet of the largest size, with the pattern, in one piece."""
    words = ["-p", PATTERN.hex(), "-s", str(mtu - ICMP_HEADERS), "-M", "do"]
    fabric.exec(sender, "ping", "-c1", "-w30", *words, fabric.address(receiver))


def test_packets_between_machines_are_seen_without_wireguard(machines: Machines) -> None:
    with (
        captured(machines["head"]) as capture,
        machine_service(machines["m1"]) as other,
        placed_fabric("wireguard-plain", machines, other) as fabric,
    ):
        ping(fabric, "s0", "s2", MTU - TUNNEL_HEADERS)
    assert (socket.IPPROTO_UDP, VXLAN_PORT) in capture.destinations
    assert capture.has_pattern


def test_machines_exchange_nothing_but_packets_of_wireguard(
    machines: Machines, tmp_path: Path
) -> None:
    inside = encrypted(machines, tmp_path, MTU)
    mtu = MTU - WIREGUARD_HEADERS - TUNNEL_HEADERS
    with (
        captured(machines["head"]) as capture,
        machine_service(inside["m1"]) as other,
        placed_fabric("wireguard-inside", inside, other) as fabric,
    ):
        for pair in (("s0", "s2"), ("s3", "s1")):
            ping(fabric, *pair, mtu)
        fabric.command("light", "s2/o0~s3/o0")  # a frame has proved the circuit when this ends
        ping(fabric, "s2", "s3", mtu)
    assert capture.destinations == {(socket.IPPROTO_UDP, WIREGUARD_PORT)}
    assert not capture.fragments
    assert not capture.has_pattern
