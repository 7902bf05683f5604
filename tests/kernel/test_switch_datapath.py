"""The switch in the kernel and its chassis: ports, numbers, program, and what stays when they go."""

import os
from contextlib import closing

import pytest

from emulator import bpf_calls
from emulator.switch.chassis import Chassis
from emulator.switch.datapath import BpfDatapath
from emulator.switch.flow import ALL, CONTROLLER, Flow, Output, SetField
from emulator.switch.match import Match
from emulator.switch.program import switch_program
from emulator.switch.seam import Count
from moefabric.errors import FabricError
from tests.kernel.optical_bench import missing_for_kernel_tests
from tests.kernel.switch_bench import Lab, heard_by, lab
from tests.switch_frames import ipv4, lldp

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]


def test_a_switch_does_without_its_owner(chassis: Chassis) -> None:
    with lab(2, chassis, number=3) as bench:
        bench.switch.load([Flow(Match(), 0, (Output(2),))])
        bench.switch.close()
        assert heard_by(bench, 1, ipv4()) == [2]


def test_a_port_that_comes_later_is_one_of_all(chassis: Chassis) -> None:
    flow = Flow(Match(), 0, (Output(ALL), SetField("ip_dscp", 1), Output(ALL)))
    with lab(3, chassis, number=4, ports=2) as bench:
        bench.switch.load([flow])
        assert heard_by(bench, 1, ipv4()) == [2, 2]
        bench.switch.attach({3: "p3"}, bench.hosts.path(bench.hosts.ocs))
        assert heard_by(bench, 1, ipv4()) == [2, 2, 3, 3]
        assert bench.switch.counters() == {flow.key: Count(2, 2 * len(ipv4()))}


def test_wrong_numbers_and_interfaces_are_refused(chassis: Chassis, bench: Lab) -> None:
    with pytest.raises(FabricError, match=r"switch 8: the chassis has room for 0\.\.7"):
        BpfDatapath(chassis, 8)
    with pytest.raises(FabricError, match="switch 7 of the chassis is taken"):
        BpfDatapath(chassis, 7)
    with pytest.raises(FabricError, match=r"ports \[0, 256\] are not among 1\.\.255"):
        bench.switch.attach({0: "p1", 256: "p2"})
    with pytest.raises(FabricError, match="no interface nix"):
        bench.switch.attach({1: "nix"}, bench.hosts.path(bench.hosts.ocs))
    with pytest.raises(FabricError, match="512 switches of 255 ports: a chassis has room for 256"):
        Chassis(512)


def test_the_program_for_processors_that_reorder_loads_is_one_too(chassis: Chassis) -> None:
    with closing(Chassis(1)) as other, closing(BpfDatapath(other, 0)) as switch:
        switch.load([Flow(Match(), 0, (Output(CONTROLLER),))])
        program = bpf_calls.load_classifier(
            "ordered", switch_program(other.layout, other.maps, barriers=True)
        )
        try:
            bpf_calls.run_classifier(program, lldp(), 1)
        finally:
            os.close(program)
        assert [punt.frame for punt in switch.received()] == [lldp()]


def test_nothing_stays_open(chassis: Chassis) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counting is all
    with closing(Chassis(1)) as other, closing(BpfDatapath(other, 0)):
        pass
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
