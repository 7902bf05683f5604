"""Selection of the datapath: the mechanism that forwards packets in the electrical switches."""

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from moefabric.core.errors import FabricError, SpecError, UnsupportedError
from moefabric.emulator.fabric.plan import SwitchPlan
from moefabric.emulator.linux import namespaces
from moefabric.runtime.waiting import Deadline


@dataclass(frozen=True)
class DatapathKind:
    """Kind of datapath.

    Attributes:
        name: as in a run's manifest.
        bridge_type: Open vSwitch's `datapath_type`, or empty.
    """

    name: str
    bridge_type: str = ""

    @property
    def is_ovs(self) -> bool:
        """Whether Open vSwitch forwards."""
        return bool(self.bridge_type)

    @property
    def in_user_space(self) -> bool:
        """Whether ovs-vswitchd forwards each packet through sockets, whose buffers can overflow."""
        return self.bridge_type == "netdev"


BPF: Final = DatapathKind("bpf")
KERNEL: Final = DatapathKind("ovs-kernel", "system")
USER: Final = DatapathKind("ovs-netdev", "netdev")
_KINDS: Final = {kind.name: kind for kind in (BPF, KERNEL, USER)}
SWITCH_OPTIONS: Final = ("auto", "bpf", "ovs")
"""Values of `switch` in a fabric file."""


class ElectricalSwitches(Protocol):
    """All electrical switches of a fabric; for callers in the fabric's namespace.

    Callers call the methods in the order below. Every method raises FabricError if it fails.
    """

    def start(self, deadline: Deadline) -> None:
        """Start the processes that serve the switches."""

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        """Make the switches and attach their ports, without rules and controllers."""

    def finish(self, deadline: Deadline) -> str | None:
        """Finish after the ports are shaped; return the features that this machine lacks."""

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Connect switches, named by bridge, to controllers that already listen."""


@dataclass(frozen=True)
class DatapathChoice:
    """Chosen datapath, and the reason why this kernel has no better one."""

    datapath: DatapathKind
    reason: str | None = None


def choose_datapath(switch: str = "auto") -> DatapathChoice:
    """Choose the datapath of this machine.

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
        return DatapathChoice(KERNEL if has_kernel_module() else USER, reason)
    return DatapathChoice(BPF)


def datapath_named(name: str) -> DatapathKind:
    """Return the datapath with this name in a manifest."""
    return _KINDS[name]


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
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["modprobe", "-q", "openvswitch"], capture_output=True, timeout=5, check=False
            )
    return module.exists()
