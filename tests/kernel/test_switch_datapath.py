"""The datapath in the kernel: ports, numbers, program, and what outlives its owner."""

import os
from contextlib import closing

import pytest

from moefabric.core.errors import FabricError
from moefabric.core.openflow.actions import ALL, CONTROLLER, Output, SetField
from moefabric.core.openflow.match import Match
from moefabric.emulator.linux import bpf_assembler
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.openflow_switch.datapath.bpf_datapath import BpfDatapath, SharedProgram
from moefabric.emulator.openflow_switch.datapath.interface import Flow, FlowCount
from moefabric.emulator.openflow_switch.datapath.switch_program import ProgramMaps, switch_program
from tests.kernel.switch_bench import Lab, attach, heard_by, lab
from tests.support.classifiers import LOOPBACK, run_classifier
from tests.support.switch_frames import ipv4, lldp


def test_switch_outlives_its_owner() -> None:
    with lab(2) as bench:
        bench.switch.load([Flow(Match(), 0, (Output(2),))])
        bench.switch.close()
        assert heard_by(bench, 1, ipv4()) == [2]


def test_flood_includes_port_attached_later() -> None:
    flow = Flow(Match(), 0, (Output(ALL), SetField("ip_dscp", 1), Output(ALL)))
    with lab(3, ports=2) as bench:
        bench.switch.load([flow])
        assert heard_by(bench, 1, ipv4()) == [2, 2]
        attach(bench, {3: "p3"}, bench.switch)
        assert heard_by(bench, 1, ipv4()) == [2, 2, 3, 3]
        assert bench.switch.counters() == {flow.key: FlowCount(2, 2 * len(ipv4()))}


def test_invalid_numbers_and_interfaces_are_refused(bench: Lab) -> None:
    with pytest.raises(FabricError, match=r"switch 2: the program serves 0\.\.1"):
        BpfDatapath(bench.program, 2)
    with pytest.raises(FabricError, match="switch 0 of the program is taken"):
        BpfDatapath(bench.program, 0)
    with pytest.raises(FabricError, match=r"ports \[0, 256\] are not among 1\.\.255"):
        bench.switch.attach({0: "p1", 256: "p2"})
    with pytest.raises(FabricError, match="no interface nix"):
        attach(bench, {1: "nix"}, bench.switch)


def test_program_with_barriers_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SharedProgram(1)) as other, closing(BpfDatapath(other, 0)) as switch:
        switch.load([Flow(Match(), 0, (Output(CONTROLLER),))])
        other.assign(0, {0: LOOPBACK})
        monkeypatch.setattr(bpf_assembler, "IS_STRONGLY_ORDERED", False)
        own = ProgramMaps(other.places, other.cache, other.slot_bits)
        descriptor = bpf_calls.load_program(
            "ordered", switch_program(other.layout, other.maps, own)
        )
        monkeypatch.undo()
        try:
            run_classifier(descriptor, lldp(), 1)
        finally:
            os.close(descriptor)
        assert [punt.frame for punt in switch.received()] == [lldp()]


def test_close_closes_all_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only the number matters
    with closing(SharedProgram(1)) as other, closing(BpfDatapath(other, 0)):
        pass
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
