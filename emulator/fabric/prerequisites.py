"""Check of the machine and the user before anything of a fabric is made."""

import os
import shutil
from collections.abc import Mapping
from typing import Final

from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric.datapath import DatapathKind, choose_datapath
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.runtime.run_directory import ManagementNetwork, RunDirectory

_PROGRAMS: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "mnexec": "mininet",
}
_OVS_PROGRAMS: Final = dict.fromkeys(("ovsdb-server", "ovs-vswitchd"), "openvswitch-switch")
_MAX_PATH_LETTERS: Final = 80
"""unix(7) allows 107 bytes for a socket's path; the longest file name needs the rest."""


def check_prerequisites(fabric: Fabric, run_dir: RunDirectory) -> None:
    """Check that a fabric is possible here, before anything is made.

    Args:
        fabric: the fabric.
        run_dir: its run directory.

    Raises:
        FabricError: if its names, rates or paths are impossible.
        UnsupportedError: if root or a program is missing.
    """
    if os.geteuid() != 0:
        raise UnsupportedError(
            "a fabric needs root: network namespaces and shaping "
            "(CAP_NET_ADMIN, CAP_SYS_ADMIN); run with sudo"
        )
    _require_programs(_PROGRAMS, "a fabric")
    if len(str(run_dir.path)) > _MAX_PATH_LETTERS:
        raise FabricError(
            f"{run_dir.path}: too long for the sockets in it; "
            "set MOEFABRIC_RUN_DIR to a shorter one"
        )
    plan_fabric(fabric, ManagementNetwork.example_for(fabric))


def _require_programs(programs: Mapping[str, str], user: str) -> None:
    """Raise UnsupportedError unless all programs are installed; the values are their packages."""
    if missing := [
        f"{name} (apt install {package})"
        for name, package in programs.items()
        if shutil.which(name) is None
    ]:
        raise UnsupportedError(f"{user} needs {', '.join(missing)}; see `moefabric doctor`")


def usable_datapath(switch: str) -> tuple[DatapathKind, str]:
    """Return the datapath that `switch` means here, and why the kernel has no better one.

    Raises:
        UnsupportedError: if its programs are missing.
    """
    datapath, reason = choose_datapath(switch)
    if datapath is not DatapathKind.BPF:
        _require_programs(_OVS_PROGRAMS, f"{datapath} ({reason})" if reason else "`switch: ovs`")
    return datapath, reason or ""
