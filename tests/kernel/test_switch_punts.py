"""Packets that the switch in the kernel has for its controller."""

import random

import pytest

from emulator.switch.flow import CONTROLLER, Flow, Output, SetField
from emulator.switch.match import Match
from emulator.switch.packet import fields
from tests.kernel.optical_bench import missing_for_kernel_tests
from tests.kernel.switch_bench import Lab, heard_by
from tests.namespaces import must
from tests.switch_frames import MACS, ipv4, lldp

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]


def test_the_controller_gets_a_frame_with_its_port_and_flow(bench: Lab) -> None:
    flow = Flow(
        Match(), 0, (Output(CONTROLLER), SetField("eth_src", MACS[2]), Output(CONTROLLER, 20), Output(2))
    )
    bench.switch.load([flow])
    assert heard_by(bench, 3, lldp()) == [2]
    first, second = bench.switch.received()
    assert (first.in_port, first.frame, first.length, first.flow) == (3, lldp(), len(lldp()), flow.key)
    assert second.frame == lldp()[:6] + MACS[2].to_bytes(6) + lldp()[12:20]
    assert (second.length, second.max_len) == (len(lldp()), 20)
    assert bench.switch.received() == ()


def test_a_full_ring_loses_packets_for_the_controller_and_no_others(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER), Output(2)))])
    for _ in range(200):
        bench.send(1, lldp())
    assert len(bench.heard(2)) == 200
    assert 0 < len(bench.switch.received()) < 200
    bench.send(1, lldp())
    assert len(bench.switch.received()) == 1


@pytest.mark.parametrize("size", [1, 1500, 2003, 2004, 9000], ids=str)
def test_the_controller_gets_large_frames_whole(bench: Lab, size: int) -> None:
    for host, netns in ((1, bench.hosts.host(1)), (0, bench.hosts.ocs)):
        must("ip", "-n", netns, "link", "set", "nic" if host else "p1", "mtu", "9100")
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER), Output(CONTROLLER, 60)))])
    frame = ipv4(payload=random.Random(size).randbytes(size - 22 if size > 22 else 1))
    bench.send(1, frame)
    assert [punt.frame for punt in bench.switch.received()] == [frame, frame[:60]]


def test_the_ring_goes_round(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER),))])
    for turn in range(500):
        bench.send(1, ipv4(dst=turn))
        assert [fields(punt.frame, 1)["ipv4_dst"] for punt in bench.switch.received()] == [turn]
