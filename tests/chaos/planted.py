"""Plant one leak of each kind, and print what `traces` sees: `python -m tests.chaos.planted`.

Each line is JSON: the kind, what is there in addition, and what is left after its removal.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.bpf_assembler import Reg, constant, exit_program
from moefabric.emulator.linux.bpf_syscalls import MAP_TYPE_ARRAY, create_map, load_program
from moefabric.runtime.run_directory import run_root
from moefabric.runtime.waiting import Deadline
from tests.chaos.traces import traces
from tests.kernel.fabric_lab import Machine, isolated_machine
from tests.support.namespaces import must

Plant = Callable[[Machine], AbstractContextManager[object]]
_VETH: Final = "ip link add left type veth peer other"
_CGROUPS: Final = Path("/sys/fs/cgroup")
_SYSCTL: Final = Path("/proc/sys/net/ipv4/ip_default_ttl")


@contextmanager
def _process(_machine: Machine, **variables: str) -> Iterator[None]:
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **variables}) as process:
        try:
            yield
        finally:
            process.kill()


def _commands(make: str, remove: str) -> Plant:
    """Return a plant that runs commands on the machine, and one more at the end."""

    @contextmanager
    def plant(machine: Machine) -> Iterator[None]:
        for command in make.split(";"):
            machine.run(partial(must, *shlex.split(command)))
        try:
            yield
        finally:
            machine.run(partial(must, *remove.split()))

    return plant


@contextmanager
def _link_in_held_namespace(_machine: Machine) -> Iterator[None]:
    with namespaces.held_new() as path:
        namespaces.run_in(path, partial(must, *_VETH.split()))
        yield


@contextmanager
def _sysctl(machine: Machine) -> Iterator[None]:
    before = machine.run(_SYSCTL.read_text)
    machine.run(partial(_SYSCTL.write_text, "77"))
    try:
        yield
    finally:
        machine.run(partial(_SYSCTL.write_text, before))


def _folder(path: Callable[[], Path]) -> Plant:
    """Return a plant that makes a folder."""

    @contextmanager
    def plant(_machine: Machine) -> Iterator[None]:
        path().mkdir()
        try:
            yield
        finally:
            path().rmdir()

    return plant


def control_group(name: str) -> Path:
    """Return the folder of a group in the root of the first hierarchy."""
    hierarchies = (_CGROUPS, *sorted(_CGROUPS.iterdir()))
    return next(one for one in hierarchies if (one / "cgroup.procs").exists()) / name


@contextmanager
def _abstract_socket(machine: Machine) -> Iterator[None]:
    with machine.run(partial(socket.socket, socket.AF_UNIX)) as left:
        left.bind("\0moefabric-left")
        yield


def _listener(machine: Machine) -> AbstractContextManager[object]:
    return machine.run(partial(socket.create_server, ("", 17171)))


@contextmanager
def _descriptors(_machine: Machine) -> Iterator[None]:
    with ExitStack() as held:
        for _ in range(100):
            held.callback(os.close, os.eventfd(0))
        yield


@contextmanager
def _thread(_machine: Machine) -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _bpf(make: Callable[[], int]) -> Plant:
    """Return a plant that holds a BPF object in another process than the tester."""

    @contextmanager
    def plant(_machine: Machine) -> Iterator[None]:
        descriptor = make()
        with subprocess.Popen(["sleep", "600"], pass_fds=[descriptor]) as process:
            os.close(descriptor)
            try:
                yield
            finally:
                process.kill()

    return plant


KINDS: Final[dict[str, tuple[str, Plant]]] = {
    "process with the mark": ("process ", partial(_process, MOEFABRIC_FABRIC="left")),
    "process without the mark": ("process ", _process),
    "veth": ("link left", _commands(_VETH, "ip link del left")),
    "named namespace": ("mount ", _commands("ip netns add left", "ip netns del left")),
    "held namespace": ("namespace net:", lambda _machine: namespaces.held_new()),
    "veth in a held namespace": ("link left", _link_in_held_namespace),
    "qdisc": ("queue ", _commands("tc qdisc add dev lo root pfifo", "tc qdisc del dev lo root")),
    "tc filter": (
        "filter lo ",
        _commands(
            "tc qdisc add dev lo clsact;tc filter add dev lo ingress bpf bytecode '1,6 0 0 0,'",
            "tc qdisc del dev lo clsact",
        ),
    ),
    "address": (
        "address 198.51.100.7/32 of lo",
        _commands("ip addr add 198.51.100.7/32 dev lo", "ip addr del 198.51.100.7/32 dev lo"),
    ),
    "sysctl": (f"sysctl {_SYSCTL} 77", _sysctl),
    "mount": ("mount ", _commands("mount -t tmpfs left /mnt", "umount /mnt")),
    "cgroup": ("cgroup ", _folder(partial(control_group, "left"))),
    "/tmp": ("file /tmp/left", _folder(lambda: Path("/tmp/left"))),
    "/dev/shm": ("file /dev/shm/left", _folder(lambda: Path("/dev/shm/left"))),
    "/run": ("file /run/left", _folder(lambda: Path("/run/left"))),
    "run directory": ("file ", _folder(lambda: run_root() / "left")),
    "hidden folder": ("file ", _folder(lambda: run_root() / ".left")),
    "abstract socket": ("socket unix @moefabric-left", _abstract_socket),
    "listener": ("socket tcp 00000000:4313", _listener),
    "100 descriptors of the tester": ("descriptor ", _descriptors),
    "thread of the tester": ("thread ", _thread),
    "BPF program": (
        "bpf prog_id",
        _bpf(lambda: load_program("left", [constant(Reg.R0, 0), exit_program()])),
    ),
    "BPF map": ("bpf map_id", _bpf(lambda: create_map(MAP_TYPE_ARRAY, "left", 4, 8, 1))),
}
"""By kind: the beginning of its trace, and what plants it."""


def main() -> None:
    """Plant all kinds, one after the other."""
    with isolated_machine() as machine, closing(sys.stdout):
        traces(machine)  # loads what the look needs
        before = traces(machine)
        for kind, (_, plant) in KINDS.items():
            with plant(machine):
                found = traces(machine) - before
            after, deadline = traces(machine), Deadline.after(5)
            while after - before and deadline.remaining_s:  # the kernel removes some later
                after = traces(machine)
            print(json.dumps([kind, sorted(found), sorted(after - before)]), flush=True)
            before = after


if __name__ == "__main__":
    main()
