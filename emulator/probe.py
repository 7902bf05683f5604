"""Probe: what this machine can and can't do for a fabric, each found out by trying, with the remedy where it can't."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emulator import buffers, datapath, mirrors, namespaces, ovs
from emulator.command import run
from moefabric.errors import CommandFailedError, MoefabricError

_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}
_ENOUGH_CORES: Final = 2
_ENOUGH_MB: Final = 2048


@dataclass(frozen=True)
class Finding:
    """One thing: whether it is as a fabric likes it, what was seen, and what to do about it."""

    what: str
    ok: bool
    why: str
    remedy: str = ""


def findings() -> list[Finding]:
    """All findings. What needs root is tried only by root, and said to be unknown otherwise."""
    return [look() for look in _LOOKS]


def _tried(what: str, attempt: Callable[[], Finding]) -> Callable[[], Finding]:
    """What only root can find out."""

    def look() -> Finding:
        if os.geteuid() == 0:
            return attempt()
        return Finding(what, False, "unknown: only root can try", "run `moefabric doctor` with sudo")

    return look


def _root() -> Finding:
    return Finding("root", os.geteuid() == 0, f"user id {os.geteuid()}", "run with sudo, or in a container")


def _capabilities() -> Finding:
    lines = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
    )
    held = int(lines["CapEff"], 16)
    missing = [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    seen = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(_CAPABILITIES)}"
    return Finding(
        "capabilities", not missing, seen, "docker: cap_add: [NET_ADMIN, NET_RAW, SYS_ADMIN, SYS_NICE]"
    )


def _crossbar() -> Finding:
    kind, why = mirrors.choose()
    return Finding(
        "optical crossbar",
        why is None,
        f"{kind}{f', for {why}' if why else ''}",
        "a kernel with CONFIG_NET_CLS_BPF; CAP_BPF",
    )


def _switches() -> Finding:
    why = datapath.bpf_refusal()
    return Finding(
        "packet switches",
        why is None,
        "bpf: the kernel switches" if why is None else f"no bpf: {why}; ovs takes its place",
        "a kernel with CONFIG_NET_CLS_BPF, CAP_BPF (Linux 5.17 or later); with OVS in user space keep to 4 servers or so",
    )


def _module() -> Finding:
    there = datapath.has_kernel_module()
    return Finding(
        "kernel module openvswitch",
        True,
        "there" if there else "not there: `switch: ovs` moves packets in user space",
        "`modprobe openvswitch` on the host, only for `switch: ovs`",
    )


def _programs(what: str, names: tuple[str, ...], package: str) -> Callable[[], Finding]:
    def look() -> Finding:
        missing = [name for name in names if shutil.which(name) is None]
        return Finding(
            what,
            not missing,
            f"lacks {', '.join(missing)}" if missing else ", ".join(names),
            f"apt install {package}",
        )

    return look


def _open_vswitch() -> Finding:
    version = ovs.version()
    return Finding(
        "Open vSwitch",
        bool(version),
        version or "ovs-vswitchd is not there",
        "apt install openvswitch-switch",
    )


def _tunnels() -> Finding:
    there = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    return Finding(
        "/dev/net/tun",
        there,
        "there" if there else "not there",
        "`modprobe tun`; docker: devices: [/dev/net/tun]",
    )


def _queueing(kind: str, words: str, remedy: str) -> Callable[[], Finding]:
    def look() -> Finding:
        why = _refused(f"qdisc add dev lo root {words}")
        return Finding(kind, why is None, why or "works", remedy)

    return _tried(kind, look)


def _refused(words: str) -> str | None:
    """Why `tc` refuses these words in a namespace made for the question; None if it doesn't."""

    def attempt() -> str | None:
        namespaces.leave()
        try:
            run(["tc", *words.split()])
        except CommandFailedError as refused:
            return " ".join(refused.said.split())
        return None

    try:
        return namespaces.within("/proc/self/ns/net", attempt)
    except MoefabricError as refused:
        return str(refused)


def _socket_buffers() -> Finding:
    """Whether another process's socket can be given large buffers: tried on a child's."""
    why = _no_buffers()
    seen = (
        "can be enlarged"
        if why is None
        else f"stay at {Path('/proc/sys/net/core/wmem_default').read_text().strip()} bytes: {why}"
    )
    remedy = "CAP_NET_ADMIN and a seccomp profile that lets pidfd_getfd pass; or raise net.core.wmem_default and rmem_default on the host"
    return Finding("switches' socket buffers", why is None, seen, remedy)


def _no_buffers() -> str | None:
    held = "import socket, sys; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        ["python3", "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            return None if buffers.enlarge(child.pid) else "the trial has no socket"
        except OSError as refused:
            return refused.strerror or str(refused)
        finally:
            child.kill()


def _mininet() -> Finding:
    there = importlib.util.find_spec("mininet") is not None
    return Finding(
        "Mininet",
        there,
        "imports" if there else "no such module",
        "apt install mininet, and a venv with --system-site-packages",
    )


def _docker() -> Finding:
    seen = ""
    with suppress(CommandFailedError):
        seen = run(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=5).strip()
    return Finding(
        "Docker",
        bool(seen),
        f"engine {seen}" if seen else "no engine answers",
        "only for `docker compose up testbed`: install docker.io",
    )


def _cgroups() -> Finding:
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return Finding("cgroups", True, "v2" if unified else "v1 or hybrid; no limits are set by either")


def _memory() -> Finding:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free_mb = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable"))
    return Finding(
        "memory",
        free_mb >= _ENOUGH_MB,
        f"{free_mb} MB available",
        f"{_ENOUGH_MB} MB are enough for 4 servers",
    )


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return Finding(
        "cores",
        cores >= _ENOUGH_CORES,
        str(cores),
        "with one core the fidelity verdict will seldom be a pass",
    )


_LOOKS: Final[tuple[Callable[[], Finding], ...]] = (
    _root,
    _capabilities,
    _cores,
    _memory,
    _mininet,
    _programs("Mininet's helpers", ("mnexec", "ifconfig", "bash"), "mininet net-tools"),
    _programs("network tools", ("ip", "tc", "nsenter"), "iproute2 util-linux"),
    _open_vswitch,
    _programs(
        "Open vSwitch's tools", ("ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"), "openvswitch-switch"
    ),
    _tried("packet switches", _switches),
    _module,
    _tried("switches' socket buffers", _socket_buffers),
    _tunnels,
    _tried("optical crossbar", _crossbar),
    _queueing("shaping (HTB)", "htb default 1", "a kernel with CONFIG_NET_SCH_HTB: `modprobe sch_htb`"),
    _queueing(
        "delay and loss (netem)",
        "netem delay 1ms",
        "`modprobe sch_netem`; without it links have no propagation delay",
    ),
    _programs("iperf3", ("iperf3",), "iperf3"),
    _docker,
    _cgroups,
)
