"""Packets with segmentation and checksum offload, through the kernel datapath."""

import random
import socket
import struct
import threading
from functools import partial

import pytest

from moefabric.core.openflow.actions import CONTROLLER, Output, SetField
from moefabric.core.openflow.match import Match
from moefabric.emulator.linux import namespaces
from moefabric.emulator.openflow_switch.datapath.interface import Flow
from moefabric.emulator.openflow_switch.flows.packet import internet_checksum, packet_fields
from tests.kernel.switch_bench import Lab, lab
from tests.support.namespaces import must
from tests.support.switch_frames import MACS

IP = {"eth_type": 0x0800}


def transferred(bench: Lab, length: int) -> bytes:
    """What host 2 receives of `length` bytes over a TCP connection from host 1."""
    address = ("10.9.0.2", 5001)
    with (
        namespaces.run_in(
            bench.hosts.path(bench.hosts.host(2)), partial(socket.create_server, address)
        ) as listener,
        namespaces.run_in(
            bench.hosts.path(bench.hosts.host(1)), partial(socket.create_connection, address, 5)
        ) as client,
        listener.accept()[0] as server,
    ):
        server.settimeout(10)
        sender = threading.Thread(
            target=client.sendall, args=(random.Random(1).randbytes(length),), daemon=True
        )
        sender.start()
        received = bytearray()
        while len(received) < length and (part := server.recv(1 << 20)):
            received += part
        sender.join(timeout=10)
    return bytes(received)


def segment_checksum(frame: bytes) -> int:
    """0 if the TCP checksum is right."""
    return internet_checksum(frame[26:34] + struct.pack(">HH", 6, len(frame) - 34) + frame[34:])


@pytest.mark.parametrize(
    "left_to_hardware", [True, False], ids=["offload", "no-offload-behind-the-switch"]
)
def test_offloaded_packets_pass_with_set_fields(*, left_to_hardware: bool) -> None:
    """Hosts send up to 64 KB at once without checksum; the kernel segments where necessary."""
    there = Flow(
        Match.of(**IP, ipv4_dst=0x0A090002),
        1,
        (SetField("ip_dscp", 12), SetField("eth_src", MACS[2]), Output(2)),
    )
    back = Flow(Match.of(**IP, ipv4_dst=0x0A090001), 1, (Output(1),))
    with lab(2) as bench:
        if not left_to_hardware:
            off = ("tso", "off", "gso", "off", "tx", "off", "sg", "off")
            must("ip", "netns", "exec", bench.hosts.ocs, "ethtool", "-K", "p2", *off)
        bench.switch.load([there, back])
        assert transferred(bench, 2_000_000) == random.Random(1).randbytes(2_000_000)
        frames = [frame for frame in bench.heard(2) if len(frame) > 1000]
        count = bench.switch.counters()[there.key]
    assert all(frame[6:12] == MACS[2].to_bytes(6) and frame[15] >> 2 == 12 for frame in frames)
    assert all(internet_checksum(frame[14:34]) == 0 for frame in frames)
    assert count.bytes > 2_000_000
    assert count.packets >= 2_000_000 / 1460  # counted as segments
    if left_to_hardware:
        assert max(map(len, frames)) > 10_000
    else:
        assert max(map(len, frames)) == 1514
        assert all(segment_checksum(frame) == 0 for frame in frames)


def test_punted_segment_has_complete_checksum() -> None:
    flow = Flow(Match(), 0, (Output(CONTROLLER),))
    with lab(2) as bench:
        bench.switch.load([flow])
        there = bench.hosts.path(bench.hosts.host(1))
        with namespaces.run_in(there, socket.socket) as client:
            client.setblocking(False)
            client.connect_ex(("10.9.0.2", 5001))
            (punt, *_) = bench.switch.received()
    assert packet_fields(punt.frame, 1)["tp_dst"] == 5001
    assert segment_checksum(punt.frame) == 0
