"""Checks for `moefabric doctor`: tries each need of a fabric, and gives remedies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from moefabric.core.errors import TORCH_REMEDY, CommandFailedError, FabricError, MoefabricError
from moefabric.emulator.containers.engine import engine_description
from moefabric.emulator.crossbar.bpf_crossbar import KIND, crossbar_refusal
from moefabric.emulator.fabric import datapath, ovs
from moefabric.emulator.fabric.mininet_package import mininet_spec
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.backlog import backlog_limit, nics_within
from moefabric.emulator.linux.command import run

_CAPABILITIES: Final = {
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_NICE": 23,
}
_MIN_CORES: Final = 2
_MIN_MB: Final = 2048
_MANY_NICS: Final = 100
_SOCKET_PROGRAM: Final = (
    "import socket, sys; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); "
    "print(flush=True); sys.stdin.read()"
)
_Probe = Callable[[], str]
"""Function that describes what the machine has; it raises an error that says what it lacks."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        what: subject of the check.
        ok: whether the machine meets the requirement.
        why: description of what the check has found.
        remedy: what to do if the requirement isn't met.
        is_unknown: whether it could not be checked; `ok` is false then.
        needed: whether no fabric is possible without it.
        instead: the check that stands in for this one if it is met.
    """

    what: str
    ok: bool
    why: str
    remedy: str = ""
    is_unknown: bool = False
    needed: bool = False
    instead: str = ""


@dataclass(frozen=True)
class Readiness:
    """Ability of a machine to run fabrics, by its findings.

    Attributes:
        missing: checks without which no fabric is possible, and which aren't met.
        unknown: checks without which no fabric is possible, and which couldn't be made.
        without: checks that aren't met, or are unknown, and that some fabrics need.
    """

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    without: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        """True if fabrics are possible."""
        return not self.missing and not self.unknown

    @property
    def text(self) -> str:
        """Summary in one line: possible commands, and missing needs."""
        if self.is_ready:
            return "ready for run, up" + _listed("without", self.without)
        lacks = _listed("needs", self.missing) + _listed("unknown", self.unknown)
        return f"ready for predict, plan; not for run, up{lacks}"


def _listed(title: str, names: tuple[str, ...]) -> str:
    return f"; {title}: {', '.join(names)}" if names else ""


def readiness(findings: Sequence[Finding]) -> Readiness:
    """Return the ability of a machine to run fabrics, by the findings of all checks."""
    met = {finding.what for finding in findings if finding.ok}
    lacking = [finding for finding in findings if not finding.ok]
    needed = [one for one in lacking if one.needed and one.instead not in met]
    return Readiness(
        missing=tuple(one.what for one in needed if not one.is_unknown),
        unknown=tuple(one.what for one in needed if one.is_unknown),
        without=tuple(one.what for one in lacking if one not in needed),
    )


_CHECKS: Final[list[Callable[[], Finding]]] = []


def probe_machine() -> list[Finding]:
    """Run all checks; for users other than root, those that need root are unknown."""
    return [check() for check in _CHECKS]


def _check(
    what: str,
    remedy: str = "",
    *,
    needs_root: bool = False,
    needed: bool = False,
    instead: str = "",
) -> Callable[[_Probe], None]:
    """Return a decorator that makes a probe the next check of `probe_machine`."""

    def add(probe: _Probe) -> None:
        blank = Finding(what, False, "", remedy, needed=needed, instead=instead)
        _CHECKS.append(partial(_finding, blank, probe, needs_root=needs_root))

    return add


def _finding(blank: Finding, probe: _Probe, *, needs_root: bool) -> Finding:
    if needs_root and os.geteuid() != 0:
        sudo = "run `moefabric doctor` with sudo"
        return replace(blank, why="only root can run this check", remedy=sudo, is_unknown=True)
    try:
        return replace(blank, ok=True, why=probe())
    except CommandFailedError as error:
        return replace(blank, why=" ".join(error.output.split()))
    except MoefabricError as error:
        return replace(blank, why=str(error))


def _checked(ok: object, description: str) -> str:
    """Return a description of what the machine has; raise FabricError with it if that lacks."""
    if not ok:
        raise FabricError(description)
    return description


def _proc_number(file: str, field: str, base: int = 10) -> int:
    """Return the number of a field in a file of /proc."""
    lines = Path("/proc", file).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1], base)


def _check_programs(what: str, remedy: str, *names: str, needed: bool = False) -> None:
    """Add a check that programs are installed."""

    @_check(what, remedy, needed=needed)
    def _programs() -> str:
        missing = [name for name in names if shutil.which(name) is None]
        return _checked(not missing, f"lacks {', '.join(missing)}" if missing else ", ".join(names))


def _check_qdisc(what: str, words: str, remedy: str, *, needed: bool = False) -> None:
    """Add a check that puts a qdisc on the loopback of a new namespace."""

    @_check(what, remedy, needs_root=True, needed=needed)
    def _qdisc() -> str:
        namespaces.run_in_new(lambda: run(["tc", *f"qdisc add dev lo root {words}".split()]))
        return "works"


@_check("root", "run with sudo, or in a container", needed=True)
def _root() -> str:
    return _checked(os.geteuid() == 0, f"user id {os.geteuid()}")


@_check("capabilities", "docker: cap_add: [NET_ADMIN, NET_RAW, SYS_ADMIN, SYS_NICE]", needed=True)
def _capabilities() -> str:
    effective = _proc_number("self/status", "CapEff", base=16)
    missing = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    _checked(not missing, f"lacks {', '.join(missing)}")
    return f"has {', '.join(_CAPABILITIES)}"


@_check("cores", "with one core the fidelity verdict is seldom a pass")
def _cores() -> str:
    cores = len(os.sched_getaffinity(0))
    return _checked(cores >= _MIN_CORES, str(cores))


@_check("memory", f"{_MIN_MB} MB are enough for 4 servers")
def _memory() -> str:
    megabytes = _proc_number("meminfo", "MemAvailable") // 1024
    return _checked(megabytes >= _MIN_MB, f"{megabytes} MB available")


@_check("controllers' framework", "in moefabric's repository: pip install '.[fabric]'", needed=True)
def _framework() -> str:
    for distribution in ("ryu", "os-ken"):
        with suppress(PackageNotFoundError):
            return f"{distribution} {version(distribution)}"
    raise FabricError("neither Ryu nor os-ken is installed")


@_check("Mininet", "apt install mininet", needed=True)
def _mininet() -> str:
    spec = mininet_spec()
    return _checked(spec, str(spec.origin) if spec else "no such module")


_HELPERS: Final = "mnexec", "ifconfig", "bash"
_check_programs("Mininet's helpers", "apt install mininet net-tools", *_HELPERS, needed=True)
_TOOLS: Final = "ip", "tc", "nsenter"
_check_programs("network tools", "apt install iproute2 util-linux", *_TOOLS, needed=True)


@_check("Open vSwitch", "apt install openvswitch-switch")
def _open_vswitch() -> str:
    installed = ovs.version()
    return _checked(installed, installed or "ovs-vswitchd is not there")


_OVS_TOOLS: Final = "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"
_check_programs("Open vSwitch's tools", "apt install openvswitch-switch", *_OVS_TOOLS)


@_check(
    "packet switches",
    "a kernel with CONFIG_NET_CLS_BPF, CAP_BPF (Linux 5.17 or later); "
    "with OVS in user space keep to 4 servers or so",
    needs_root=True,
    needed=True,
    instead="Open vSwitch",
)
def _switches() -> str:
    if reason := datapath.bpf_refusal():
        raise FabricError(f"no bpf: {reason}; ovs takes its place")
    return "bpf: the kernel switches"


@_check("kernel module openvswitch", "`modprobe openvswitch` on the host, only for `switch: ovs`")
def _module() -> str:
    is_there = datapath.has_kernel_module()
    return _checked(is_there, "there" if is_there else "not there: `switch: ovs` is slow")


@_check(
    "switches' socket buffers",
    "CAP_NET_ADMIN and a seccomp profile that lets pidfd_getfd pass; "
    "or raise net.core.wmem_default and rmem_default on the host",
    needs_root=True,
)
def _socket_buffers() -> str:
    """Try to enlarge the buffers of a child process's socket."""
    command = ["python3", "-c", _SOCKET_PROGRAM]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            if ovs.enlarge_buffers(child.pid):
                return "can be enlarged"
            reason = "the trial has no socket"
        except OSError as error:
            reason = error.strerror or str(error)
        finally:
            child.kill()
    size = Path("/proc/sys/net/core/wmem_default").read_text().strip()
    raise FabricError(f"stay at {size} bytes: {reason}")


@_check("/dev/net/tun", "`modprobe tun`; docker: devices: [/dev/net/tun]")
def _tun() -> str:
    exists = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    return _checked(exists, "there" if exists else "not there")


@_check("optical crossbar", "a kernel with CONFIG_NET_CLS_BPF; CAP_BPF", needs_root=True)
def _crossbar() -> str:
    reason = crossbar_refusal()
    return _checked(reason is None, reason or KIND)


_HTB: Final = "a kernel with CONFIG_NET_SCH_HTB: `modprobe sch_htb`"
_BFIFO: Final = "a kernel with CONFIG_NET_SCH_FIFO; without it, no `queue: 400 kB`"
_check_qdisc("shaping (HTB)", "htb default 1", _HTB, needed=True)
_check_qdisc("queues of limited bytes (bfifo)", "bfifo limit 100000", _BFIFO)
_check_programs("iperf3", "apt install iperf3", "iperf3")


@_check("PyTorch", f"only for programs that train: {TORCH_REMEDY}")
def _pytorch() -> str:
    is_there = find_spec("torch") is not None
    return _checked(is_there, "there" if is_there else f"{sys.executable} has none")


@_check("backlog of a core", "`sysctl -w net.core.netdev_max_backlog=65536` on the host, 64 a NIC")
def _backlog() -> str:
    limit = backlog_limit()
    if limit is None:
        raise FabricError("unknown: only the host may read it")
    nics = nics_within(limit)
    return _checked(nics >= _MANY_NICS, f"{limit} frames, enough for {nics} NICs")


@_check("containers", "only for servers that are containers, and for `docker compose up testbed`")
def _containers() -> str:
    return engine_description()


@_check("cgroups")
def _cgroups() -> str:
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return "v2" if unified else "v1 or hybrid; no limits are set by either"
