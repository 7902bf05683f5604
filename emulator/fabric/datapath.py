"""Selection of the datapath: the mechanism that forwards packets in the electrical switches."""

import contextlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from moefabric.core.errors import FabricError, SpecError, UnsupportedError
from moefabric.emulator.fabric.plan import SwitchPlan
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import run
from moefabric.runtime.waiting import Deadline


class DatapathKind(StrEnum):
    """Kind of datapath, as in a run's manifest."""

    BPF = "bpf"
    KERNEL = "ovs-kernel"
    USER = "ovs-netdev"
    """ovs-vswitchd forwards each packet through sockets, whose buffers can overflow."""


SWITCH_OPTIONS: Final = ("auto", "bpf", "ovs")
"""Values of `switch` in a fabric file."""


class ElectricalSwitches(Protocol):
    """All electrical switches of a fabric, whose processes run; for callers in its namespace.

    Callers call the methods in the order below. Every method raises FabricError if it fails.
    """

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        """Make the switches and attach their ports, without rules and controllers."""

    def finish(self, deadline: Deadline) -> str | None:
        """Finish after the ports are shaped; return the features that this machine lacks."""

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Connect switches, named by bridge, to controllers that already listen."""


def choose_datapath(switch: str = "auto") -> tuple[DatapathKind, str | None]:
    """Choose the datapath of this machine; return it, and why this kernel has no better one.

    Args:
        switch: `bpf`, `ovs` or `auto`. Open vSwitch forwards in the kernel if its module is
            available, else in user space. `auto` is bpf if that works, else ovs.

    Raises:
        SpecError: for another value.
        UnsupportedError: for `bpf` on a kernel that doesn't support it.
    """
    if switch not in SWITCH_OPTIONS:
        raise SpecError([("switch", f"{switch!r} is not one of {', '.join(SWITCH_OPTIONS)}")])
    reason = bpf_refusal() if switch != "ovs" else None
    if switch == "bpf" and reason:
        raise UnsupportedError(
            f"switch: bpf: {reason}; a kernel with CONFIG_NET_CLS_BPF, or `switch: ovs`"
        )
    if switch == "ovs" or reason:
        return DatapathKind.KERNEL if has_kernel_module() else DatapathKind.USER, reason
    return DatapathKind.BPF, None


@cache
def bpf_refusal() -> str | None:
    """Try eBPF and return why switches in eBPF are impossible here; None if they are possible."""
    from moefabric.emulator.openflow_switch.datapath.bpf_datapath import BpfDatapath, SharedProgram

    def attempt() -> None:
        with (
            contextlib.closing(SharedProgram(1)) as program,
            contextlib.closing(BpfDatapath(program, 0)) as switch,
        ):
            switch.attach({1: "lo"})

    try:
        namespaces.run_in_new(attempt)
    except FabricError as error:
        return str(error)
    return None


def has_kernel_module() -> bool:
    """Try to load Open vSwitch's kernel module and return whether it is loaded."""
    module = Path("/sys/module/openvswitch")
    if not module.exists():
        # If modprobe is missing or fails, the module stays absent.
        with contextlib.suppress(FabricError):
            run(["modprobe", "-q", "openvswitch"], timeout_s=5)
    return module.exists()
