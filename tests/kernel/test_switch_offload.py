"""Packets that hosts leave to hardware, to be cut and summed, through the switch in the kernel."""

import random
import socket
import struct
import threading
from functools import partial

import pytest

from emulator import namespaces
from emulator.switch.chassis import Chassis
from emulator.switch.checksums import internet_checksum
from emulator.switch.flow import CONTROLLER, Flow, Output, SetField
from emulator.switch.match import Match
from emulator.switch.packet import fields
from tests.kernel.optical_bench import missing_for_kernel_tests
from tests.kernel.switch_bench import Lab, lab
from tests.namespaces import must
from tests.switch_frames import MACS

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

IP = {"eth_type": 0x0800}


def carried(bench: Lab, length: int) -> bytes:
    """What a TCP connection from host 1 brings to host 2 when so many bytes are written to it."""
    ends = ("10.9.0.2", 5001)
    with (
        namespaces.within(bench.hosts.path(bench.hosts.host(2)), partial(socket.create_server, ends)) as door,
        namespaces.within(
            bench.hosts.path(bench.hosts.host(1)), partial(socket.create_connection, ends, 5)
        ) as near,
        door.accept()[0] as far,
    ):
        far.settimeout(10)
        sender = threading.Thread(
            target=near.sendall, args=(random.Random(1).randbytes(length),), daemon=True
        )
        sender.start()
        found = bytearray()
        while len(found) < length and (part := far.recv(1 << 20)):
            found += part
        sender.join(timeout=10)
    return bytes(found)


def segment_checksum(frame: bytes) -> int:
    """0 if the TCP checksum is right."""
    return internet_checksum(frame[26:34] + struct.pack(">HH", 6, len(frame) - 34) + frame[34:])


@pytest.mark.parametrize("left_to_hardware", [True, False], ids=["offload", "no-offload-behind-the-switch"])
def test_super_packets_pass_with_their_fields_set(chassis: Chassis, *, left_to_hardware: bool) -> None:
    """Hosts hand over up to 64 KB in one piece, without checksum; with fields set it arrives, and is cut and summed where it must be."""
    there = Flow(
        Match.of(**IP, ipv4_dst=0x0A090002),
        1,
        (SetField("ip_dscp", 12), SetField("eth_src", MACS[2]), Output(2)),
    )
    back = Flow(Match.of(**IP, ipv4_dst=0x0A090001), 1, (Output(1),))
    with lab(2, chassis, number=int(left_to_hardware)) as bench:
        if not left_to_hardware:
            off = ("tso", "off", "gso", "off", "tx", "off", "sg", "off")
            must("ip", "netns", "exec", bench.hosts.ocs, "ethtool", "-K", "p2", *off)
        bench.switch.load([there, back])
        assert carried(bench, 2_000_000) == random.Random(1).randbytes(2_000_000)
        frames = [frame for frame in bench.heard(2) if len(frame) > 1000]
        counted = bench.switch.counters()[there.key]
    assert all(frame[6:12] == MACS[2].to_bytes(6) and frame[15] >> 2 == 12 for frame in frames)
    assert all(internet_checksum(frame[14:34]) == 0 for frame in frames)
    assert counted.bytes > 2_000_000
    assert counted.packets >= 2_000_000 / 1460  # as many as it would be cut into
    if left_to_hardware:
        assert max(map(len, frames)) > 10_000
    else:
        assert max(map(len, frames)) == 1514
        assert all(segment_checksum(frame) == 0 for frame in frames)


def test_a_punted_segment_has_the_checksum_that_was_left_to_hardware(chassis: Chassis) -> None:
    flow = Flow(Match(), 0, (Output(CONTROLLER),))
    with lab(2, chassis, number=2) as bench:
        bench.switch.load([flow])
        there = bench.hosts.path(bench.hosts.host(1))
        with namespaces.within(there, socket.socket) as near:
            near.setblocking(False)
            near.connect_ex(("10.9.0.2", 5001))
            (punt, *_) = bench.switch.received()
    assert fields(punt.frame, 1)["tp_dst"] == 5001
    assert segment_checksum(punt.frame) == 0
