"""Packets of the kernel datapath for the controller."""

import random

import pytest

from moefabric.core.openflow.actions import CONTROLLER, Output, SetField
from moefabric.core.openflow.match import Match
from moefabric.emulator.openflow_switch.datapath.interface import Flow
from moefabric.emulator.openflow_switch.flows.packet import packet_fields
from tests.kernel.switch_bench import Lab, heard_by
from tests.support.namespaces import must
from tests.support.switch_frames import MACS, ipv4, lldp


def test_punted_packet_has_port_and_flow(bench: Lab) -> None:
    flow = Flow(
        Match(),
        0,
        (Output(CONTROLLER), SetField("eth_src", MACS[2]), Output(CONTROLLER, 20), Output(2)),
    )
    bench.switch.load([flow])
    assert heard_by(bench, 3, lldp()) == [2]
    first, second = bench.switch.received()
    assert (first.in_port, first.flow) == (3, flow.key)
    assert (first.frame, first.length) == (lldp(), len(lldp()))
    assert second.frame == lldp()[:6] + MACS[2].to_bytes(6) + lldp()[12:20]
    assert second.length == len(lldp())
    assert bench.switch.received() == ()


def test_full_ring_loses_punted_packets_only(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER), Output(2)))])
    for _ in range(200):
        bench.send(1, lldp())
    assert len(bench.heard(2)) == 200
    assert 0 < len(bench.switch.received()) < 200
    bench.send(1, lldp())
    assert len(bench.switch.received()) == 1


@pytest.mark.parametrize("size", [1, 1500, 2003, 2004, 9000], ids=str)
def test_large_frames_are_punted_whole(bench: Lab, size: int) -> None:
    for host, netns in ((1, bench.hosts.host(1)), (0, bench.hosts.ocs)):
        must("ip", "-n", netns, "link", "set", "nic" if host else "p1", "mtu", "9100")
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER), Output(CONTROLLER, 60)))])
    frame = ipv4(payload=random.Random(size).randbytes(size - 22 if size > 22 else 1))
    bench.send(1, frame)
    assert [punt.frame for punt in bench.switch.received()] == [frame, frame[:60]]


def test_ring_wraps_around(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER),))])
    for attempt in range(500):
        bench.send(1, ipv4(dst=attempt))
        assert [packet_fields(punt.frame, 1)["ipv4_dst"] for punt in bench.switch.received()] == [
            attempt
        ]
