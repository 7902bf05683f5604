"""Datapath: what moves the packets of the electrical switches on this machine. The one place where it is chosen."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Datapath:
    """A datapath of Open vSwitch. `name` stands in the manifest; `bridge_type` is OVS's own word for it."""

    name: str
    bridge_type: str

    @property
    def in_user_space(self) -> bool:
        """Whether ovs-vswitchd moves each packet itself, by sockets whose buffers can overflow."""
        return self.bridge_type == "netdev"


KERNEL: Final = Datapath("ovs-kernel", "system")
USER: Final = Datapath("ovs-netdev", "netdev")
_ALL: Final = {datapath.name: datapath for datapath in (KERNEL, USER)}


def choose() -> Datapath:
    """OVS in the kernel where its module is, or can be had; else in user space."""
    return KERNEL if has_kernel_module() else USER


def named(name: str) -> Datapath:
    """The datapath of that name in a manifest."""
    return _ALL[name]


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
