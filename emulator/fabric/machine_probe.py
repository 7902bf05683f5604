"""Checks for `moefabric doctor`: tries each need of a fabric, and gives remedies."""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from moefabric.core.errors import CommandFailedError, FabricError, UnsupportedError
from moefabric.emulator.containers.engine import engine_description
from moefabric.emulator.crossbar.selection import choose_crossbar
from moefabric.emulator.fabric import datapath, ovs
from moefabric.emulator.fabric.mininet_package import mininet_spec
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import run

_CAPABILITIES: Final = {
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_NICE": 23,
}
_MIN_CORES: Final = 2
_MIN_MB: Final = 2048
_SOCKET_PROGRAM: Final = (
    "import socket, sys; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); "
    "print(flush=True); sys.stdin.read()"
)
_Probe = Callable[[], tuple[bool, str]]
"""Function that returns whether the machine meets a requirement, and a description."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        what: subject of the check.
        ok: whether the machine meets the requirement.
        why: description of what the check has found.
        remedy: what to do if the requirement isn't met.
    """

    what: str
    ok: bool
    why: str
    remedy: str = ""


@dataclass(frozen=True)
class _Check:
    what: str
    probe: _Probe
    remedy: str = ""
    needs_root: bool = False

    def finding(self) -> Finding:
        if self.needs_root and os.geteuid() != 0:
            remedy = "run `moefabric doctor` with sudo"
            return Finding(self.what, False, "unknown: only root can run this check", remedy)
        return Finding(self.what, *self.probe(), self.remedy)


def probe_machine() -> list[Finding]:
    """Run all checks; for users other than root, those that need root are unknown."""
    return [check.finding() for check in _CHECKS]


def _capabilities() -> tuple[bool, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = int(next(line for line in lines if line.startswith("CapEff")).split()[1], 16)
    missing = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if missing:
        return False, f"lacks {', '.join(missing)}"
    return True, f"has {', '.join(_CAPABILITIES)}"


def _crossbar() -> tuple[bool, str]:
    kind, reason = choose_crossbar()
    return reason is None, f"{kind}, for {reason}" if reason else kind


def _switches() -> tuple[bool, str]:
    if reason := datapath.bpf_refusal():
        return False, f"no bpf: {reason}; ovs takes its place"
    return True, "bpf: the kernel switches"


def _module() -> tuple[bool, str]:
    if datapath.has_kernel_module():
        return True, "there"
    return True, "not there: `switch: ovs` moves packets in user space"


def _programs(*names: str) -> _Probe:
    def probe() -> tuple[bool, str]:
        missing = [name for name in names if shutil.which(name) is None]
        return not missing, f"lacks {', '.join(missing)}" if missing else ", ".join(names)

    return probe


def _open_vswitch() -> tuple[bool, str]:
    version = ovs.version()
    return bool(version), version or "ovs-vswitchd is not there"


def _tun() -> tuple[bool, str]:
    exists = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    return exists, "there" if exists else "not there"


def _qdisc(words: str) -> _Probe:
    """Return a probe that adds a qdisc to the loopback of a new namespace."""

    def probe() -> tuple[bool, str]:
        command = ["tc", *f"qdisc add dev lo root {words}".split()]
        try:
            namespaces.run_in_new(lambda: run(command))
        except CommandFailedError as error:
            return False, " ".join(error.output.split())
        except FabricError as error:
            return False, str(error)
        return True, "works"

    return probe


def _socket_buffers() -> tuple[bool, str]:
    """Try to enlarge the buffers of a child process's socket."""
    child = subprocess.Popen(
        ["python3", "-c", _SOCKET_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            if ovs.enlarge_buffers(child.pid):
                return True, "can be enlarged"
            reason = "the trial has no socket"
        except OSError as error:
            reason = error.strerror or str(error)
        finally:
            child.kill()
    size = Path("/proc/sys/net/core/wmem_default").read_text().strip()
    return False, f"stay at {size} bytes: {reason}"


def _mininet() -> tuple[bool, str]:
    spec = mininet_spec()
    return spec is not None, str(spec.origin) if spec else "no such module"


def _framework() -> tuple[bool, str]:
    for distribution in ("ryu", "os-ken"):
        with suppress(PackageNotFoundError):
            return True, f"{distribution} {version(distribution)}"
    return False, "neither Ryu nor os-ken is installed"


def _containers() -> tuple[bool, str]:
    try:
        return True, engine_description()
    except UnsupportedError as error:
        return False, str(error)


def _cgroups() -> tuple[bool, str]:
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return True, "v2" if unified else "v1 or hybrid; no limits are set by either"


def _memory() -> tuple[bool, str]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    return kilobytes // 1024 >= _MIN_MB, f"{kilobytes // 1024} MB available"


def _cores() -> tuple[bool, str]:
    cores = len(os.sched_getaffinity(0))
    return cores >= _MIN_CORES, str(cores)


_CHECKS: Final = (
    _Check(
        "root",
        lambda: (os.geteuid() == 0, f"user id {os.geteuid()}"),
        "run with sudo, or in a container",
    ),
    _Check(
        "capabilities", _capabilities, "docker: cap_add: [NET_ADMIN, NET_RAW, SYS_ADMIN, SYS_NICE]"
    ),
    _Check("cores", _cores, "with one core the fidelity verdict is seldom a pass"),
    _Check("memory", _memory, f"{_MIN_MB} MB are enough for 4 servers"),
    _Check("controllers' framework", _framework, "pip install 'moefabric[fabric]'"),
    _Check("Mininet", _mininet, "apt install mininet"),
    _Check(
        "Mininet's helpers",
        _programs("mnexec", "ifconfig", "bash"),
        "apt install mininet net-tools",
    ),
    _Check("network tools", _programs("ip", "tc", "nsenter"), "apt install iproute2 util-linux"),
    _Check("Open vSwitch", _open_vswitch, "apt install openvswitch-switch"),
    _Check(
        "Open vSwitch's tools",
        _programs("ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"),
        "apt install openvswitch-switch",
    ),
    _Check(
        "packet switches",
        _switches,
        "a kernel with CONFIG_NET_CLS_BPF, CAP_BPF (Linux 5.17 or later); "
        "with OVS in user space keep to 4 servers or so",
        needs_root=True,
    ),
    _Check(
        "kernel module openvswitch",
        _module,
        "`modprobe openvswitch` on the host, only for `switch: ovs`",
    ),
    _Check(
        "switches' socket buffers",
        _socket_buffers,
        "CAP_NET_ADMIN and a seccomp profile that lets pidfd_getfd pass; "
        "or raise net.core.wmem_default and rmem_default on the host",
        needs_root=True,
    ),
    _Check("/dev/net/tun", _tun, "`modprobe tun`; docker: devices: [/dev/net/tun]"),
    _Check(
        "optical crossbar", _crossbar, "a kernel with CONFIG_NET_CLS_BPF; CAP_BPF", needs_root=True
    ),
    _Check(
        "shaping (HTB)",
        _qdisc("htb default 1"),
        "a kernel with CONFIG_NET_SCH_HTB: `modprobe sch_htb`",
        needs_root=True,
    ),
    _Check(
        "queues of limited bytes (bfifo)",
        _qdisc("bfifo limit 100000"),
        "a kernel with CONFIG_NET_SCH_FIFO; without it, no `queue: 400 kB`",
        needs_root=True,
    ),
    _Check(
        "delay and loss (netem)",
        _qdisc("netem delay 1ms"),
        "`modprobe sch_netem`; without it links have no propagation delay",
        needs_root=True,
    ),
    _Check("iperf3", _programs("iperf3"), "apt install iperf3"),
    _Check(
        "containers",
        _containers,
        "only for servers that are containers, and for `docker compose up testbed`",
    ),
    _Check("cgroups", _cgroups),
)
