"""Datapath: what moves the packets of the electrical switches on this machine. The one place where it is chosen."""

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from moefabric.errors import FabricError, SpecError, UnsupportedError


@dataclass(frozen=True)
class DatapathKind:
    """What moves packets. `name` stands in the manifest; `bridge_type` is Open vSwitch's own word for it, empty where it isn't OVS."""

    name: str
    bridge_type: str = ""

    @property
    def is_ovs(self) -> bool:
        """Whether it is one of Open vSwitch's."""
        return bool(self.bridge_type)

    @property
    def in_user_space(self) -> bool:
        """Whether ovs-vswitchd moves each packet itself, by sockets whose buffers can overflow."""
        return self.bridge_type == "netdev"


BPF: Final = DatapathKind("bpf")
KERNEL: Final = DatapathKind("ovs-kernel", "system")
USER: Final = DatapathKind("ovs-netdev", "netdev")
_ALL: Final = {datapath.name: datapath for datapath in (BPF, KERNEL, USER)}
WORDS: Final = ("auto", "bpf", "ovs")
"""What a fabric file may say of its switches."""


@dataclass(frozen=True)
class Choice:
    """A datapath, and why it is no better one, where the kernel lacks what that needs."""

    datapath: DatapathKind
    why: str | None = None


def choose(wanted: str = "auto") -> Choice:
    """What `wanted` is here: `bpf`, or `ovs` (in the kernel where its module is or can be had, else in user space), or, with `auto`, bpf where it works.

    UnsupportedError where `bpf` is wanted and this kernel can't.
    """
    if wanted not in WORDS:
        raise SpecError([("switch", f"{wanted!r} is not one of {', '.join(WORDS)}")])
    if wanted == "ovs":
        return Choice(_ovs())
    why = bpf_refusal()
    if why is None:
        return Choice(BPF)
    if wanted == "bpf":
        raise UnsupportedError(f"switch: bpf: {why}; a kernel with CONFIG_NET_CLS_BPF, or `switch: ovs`")
    return Choice(_ovs(), why)


def named(name: str) -> DatapathKind:
    """The datapath of that name in a manifest."""
    return _ALL[name]


@cache
def bpf_refusal() -> str | None:
    """Why this kernel, or this caller, can't have switches in eBPF: tried once with a whole one, in a namespace made for it. None where it can."""
    from emulator import namespaces
    from emulator.switch.chassis import Chassis
    from emulator.switch.datapath import BpfDatapath

    def attempt() -> str | None:
        namespaces.leave()
        try:
            chassis = Chassis(1)
            try:
                switch = BpfDatapath(chassis, 0)
                try:
                    switch.attach({1: "lo"})
                finally:
                    switch.close()
            finally:
                chassis.close()
        except FabricError as refused:
            return str(refused)
        return None

    try:
        return namespaces.within("/proc/self/ns/net", attempt)
    except FabricError as refused:
        return str(refused)


def _ovs() -> DatapathKind:
    return KERNEL if has_kernel_module() else USER


def has_kernel_module() -> bool:
    """Whether the kernel switches for OVS; its module is loaded if it can be."""
    present = Path("/sys/module/openvswitch")
    if not present.exists():
        _load()
    return present.exists()


def _load() -> None:
    try:
        subprocess.run(["modprobe", "-q", "openvswitch"], capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return  # no modprobe, no module: the caller looks for itself
