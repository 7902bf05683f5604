"""What a fabric may leave on its machine, as texts that are compared before and after.

The tester has PID, mount, IPC, UTS, network and cgroup namespaces of its own (`alone_argv`), so
that /proc, /tmp, /run, /dev/shm and /sys/fs/cgroup show what it and its fabrics have made, and
nothing of others. It can't write global sysctls, which are the machine's.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.linux import namespaces
from moefabric.runtime.run_directory import run_root
from moefabric.runtime.waiting import Deadline
from tests.kernel.fabric_lab import Machine

_FOLDERS: Final = tuple(map(Path, ("/tmp", "/run", "/dev/shm")))
_CGROUPS: Final = Path("/sys/fs/cgroup")
_NAMESPACE: Final = re.compile(r"(net|mnt|pid|uts|ipc|user|cgroup|time):\[\d+\]")
_BPF: Final = re.compile(rb"^(prog_id|map_id|link_id):\t(\d+)$", re.MULTILINE)
_SYSCTLS: Final = Path("/proc/sys/net")
_WRITABLE: Final = 0o222
"""Mode of what a network namespace has of its own; it shows some of the machine's, too."""
_LISTENS: Final = "0A"
_OF_STREAMS: Final = ("tcp", "tcp6")
_OTHER_SOCKETS: Final = ("udp", "udp6", "raw", "raw6", "packet")


_GROUPS: Final = """
groups=
while IFS=: read -r _ names path; do
    for parent in "/sys/fs/cgroup/${names#name=}$path" "/sys/fs/cgroup/unified$path"; do
        [ -e "$parent/cgroup.procs" ] || continue
        for left in "$parent"/moefabric-chaos-*; do # by a killed shell
            [ -d "/proc/${left##*-}" ] || find "$left" -depth -type d -exec rmdir {} ';'
        done 2> /dev/null
        group=$parent/moefabric-chaos-$$
        mkdir "$group" || exit
        groups="$groups $group"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$group/$file" ] || cat "$parent/$file" > "$group/$file" || exit
        done
        break
    done
done << end
$(cat /proc/self/cgroup)
end
inside() {
    for group in $groups; do echo 0 > "$group/cgroup.procs" || exit; done
    exec "$@"
}
(inside "$@")
status=$?
for group in $groups; do find "$group" -depth -type d -exec rmdir {} ';'; done
exit $status
"""
"""Makes a control group in each of those of the shell, for as long as a command lasts.

A new group of CPUs has none in version 1.
"""
_ALONE: Final = """
umount --all --no-mtab --types nsfs 2> /dev/null
for folder in /tmp /run /dev/shm; do mount -t tmpfs -o size=64m tmpfs $folder || exit; done
mkdir /run/netns && mount -t tmpfs tmpfs /run/netns && mount --make-shared /run/netns || exit
for group in kernel fs vm user; do
    folder=/proc/sys/$group
    mount --bind $folder $folder && mount -o remount,bind,ro $folder || exit
done
while IFS=: read -r _ names _; do
    case $names in
        name=*) mount="cgroup -o none,$names" root=/sys/fs/cgroup/${names#name=} ;;
        ?*) mount="cgroup -o $names" root=/sys/fs/cgroup/$names ;;
        *) mount=cgroup2 root=/sys/fs/cgroup; [ ! -e $root/unified ] || root=$root/unified ;;
    esac
    [ -e "$root/cgroup.procs" ] || continue
    umount --lazy "$root" && mount -t $mount cgroup "$root" || exit
done < /proc/self/cgroup
"$@"
exit $?
"""
"""The shell is the first process of its PID namespace, and reaps orphans.

The roots of the control groups that it mounts are the groups of `_GROUPS`. Its mounts are private
(unshare). It unmounts the named networks of others, which would go when they are deleted; one that
goes meanwhile is an error of `umount`.
"""


def alone_argv(*arguments: str) -> list[str]:
    """Return the argv that runs Python with these arguments where it sees nothing of others."""
    namespaces_ = ("--pid", "--mount", "--ipc", "--uts", "--net", "--cgroup", "--mount-proc")
    private = ("--propagation", "private", "--fork", "--kill-child")
    unshare = ("setpriv", "--pdeathsig", "KILL", "unshare", *namespaces_, *private)
    python = (sys.executable, *arguments)
    return ["sh", "-c", _GROUPS, "sh", *unshare, "sh", "-c", _ALONE, "sh", *python]


def traces(machine: Machine) -> set[str]:
    """Return what exists on a machine, besides the logs of failed starts."""
    networks: dict[str, list[Path]] = {}
    for name, path in _networks():
        networks.setdefault(name, []).append(path)
    return {
        *_processes(),
        *_own_descriptors_and_threads(),
        *(f"namespace {name}" for name in _namespaces()),
        *(trace for name, paths in networks.items() for trace in in_network(name, paths)),
        *machine.run(lambda: set(_sysctls())),
        *_bpf_objects(),
        *_cgroups(),
        *(f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        *_files(),
    }


def _running() -> Iterator[Path]:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            yield process


def _processes() -> Iterator[str]:
    """Yield all processes, with their start, since numbers are used again."""
    for process in _running():
        with suppress(OSError):
            name, _, fields = (process / "stat").read_text().partition(" (")[2].rpartition(") ")
            if fields.split()[0] != "Z" or process.name != str(os.getpid()):
                yield f"process {process.name} {name} {fields.split()[19]}"


def _has_ended(thread: Path) -> bool:
    return not thread.exists()


def _own_descriptors_and_threads() -> Iterator[str]:
    known = {str(thread.native_id) for thread in threading.enumerate()}
    for thread in Path("/proc/self/task").iterdir():
        if thread.name not in known:  # one that was joined ends a moment later
            with suppress(FabricError):
                Deadline.after(1).wait_for(partial(_has_ended, thread), "its end")
        if thread.name != str(os.getpid()) and thread.exists():
            yield f"thread {thread.name}"
    for entry in sorted(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            target = str(entry.readlink())
            if not target.startswith("/proc/"):  # that of this listing
                yield f"descriptor {entry.name} {target}"


def _held() -> Iterator[tuple[str, Path]]:
    """Yield each namespace that a process is in or has open, and a path that leads there."""
    for process in _running():
        for folder in (*process.glob("task/*/ns"), process / "fd"):
            with suppress(OSError):
                for entry in folder.iterdir():
                    with suppress(OSError):
                        yield str(entry.readlink()), entry


def _bound() -> Iterator[tuple[str, Path]]:
    """Yield each namespace that is bound to a name, and the name."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        yield words[3], Path(words[4])


def _namespaces() -> set[str]:
    return {name for name, _ in (*_held(), *_bound()) if _NAMESPACE.fullmatch(name)}


def _networks() -> Iterator[tuple[str, Path]]:
    for name, path in (*_held(), *_bound()):
        if name.startswith("net:["):
            yield name, path


def in_network(name: str, paths: Iterable[Path]) -> Iterator[str]:
    """Yield links, addresses, queues, filters and sockets of a network namespace.

    Args:
        name: The namespace's name in /proc.
        paths: Paths that led there. Those of a thread or process that has just ended are gone; all
            are gone if the namespace has ended.
    """
    for path in paths:
        with suppress(FabricError):
            for trace in namespaces.run_in(str(path), lambda: list(_network_traces())):
                yield f"{trace} in {name}"
            return


def _network_traces() -> Iterator[str]:
    links = json.loads(_output("ip", "-j", "-d", "addr"))
    for link in links:
        yield f"link {link['ifname']} {link.get('xdp', {}).get('prog', {}).get('id', '')}"
        for address in link["addr_info"]:
            yield f"address {address['local']}/{address['prefixlen']} of {link['ifname']}"
    yield from (f"queue {line}" for line in _output("tc", "qdisc").splitlines())
    for name in (link["ifname"] for link in links):
        places = "".join(f"filter show dev {name} {p}\n" for p in ("", "ingress", "egress"))
        filters = _output("tc", "-force", "-batch", "-", given=places)
        yield from (f"filter {name} {line}" for line in filters.splitlines())
    net = Path("/proc/thread-self/net")
    for line in (net / "unix").read_text().splitlines()[1:]:
        if len(words := line.split()) > 7:
            yield f"socket unix {words[7]}"
    for kind in (*_OF_STREAMS, *_OTHER_SOCKETS):
        with suppress(FileNotFoundError):
            for line in (net / kind).read_text().splitlines()[1:]:
                words = line.split()
                if kind not in _OF_STREAMS or words[3] == _LISTENS:
                    yield f"socket {kind} {words[1]} {words[-1] if kind == 'packet' else ''}"


def _output(*argv: str, given: str = "") -> str:
    """Return what a program prints; one whose interface has just gone prints nothing."""
    return subprocess.run(
        argv, input=given, capture_output=True, text=True, timeout=30, check=False
    ).stdout


def _sysctls() -> Iterator[str]:
    """Yield the sysctls of the calling thread's network namespace."""
    for folder, _, files in os.walk(_SYSCTLS):
        for path in (Path(folder, file) for file in files):
            with suppress(OSError, UnicodeDecodeError):
                if path.stat().st_mode & _WRITABLE:
                    yield f"sysctl {path} {path.read_text().strip()}"


def _bpf_objects() -> Iterator[str]:
    """Yield BPF programs, maps and links that processes hold or that are pinned.

    Those that an interface holds are in the filters and links of its namespace.
    """
    for process in _running():
        with suppress(OSError):
            for entry in (process / "fdinfo").iterdir():
                with suppress(OSError):
                    for kind, number in _BPF.findall(entry.read_bytes()):
                        yield f"bpf {kind.decode()} {number.decode()}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("bpf "):
            yield from (f"bpf {path}" for path in Path(before.split()[4]).rglob("*"))


def _cgroups() -> Iterator[str]:
    """Yield the control groups below those of the tester."""
    for folder, _, files in os.walk(_CGROUPS):
        if "cgroup.procs" in files:
            yield f"cgroup {folder}"


def _files() -> Iterator[str]:
    """Yield files and folders, hidden ones too; logs of failed starts stay on purpose."""
    kept = str(run_root() / ".failed")
    for root in _FOLDERS:
        for folder, folders, files in os.walk(root):
            for path in (f"{folder}/{name}" for name in (*folders, *files)):
                if not path.startswith(kept):
                    yield f"file {path}"
