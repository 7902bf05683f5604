"""A fabric under limits: a full folder of run directories, few descriptors, little memory."""

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from moefabric.api.lab import Lab
from moefabric.core.eps import Eps
from moefabric.core.errors import FabricError
from moefabric.core.ocs import Ocs, OcsControl
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import process_id
from moefabric.emulator.linux import marked_processes
from moefabric.emulator.linux.cgroups import limiting_groups
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.fabric_processes import fabric_processes
from tests.conftest import KERNEL_LACKS
from tests.kernel.fabric_lab import Machine, small_fabric

pytestmark = pytest.mark.ovs
FOLDER = Path(__file__).parent
UP = """
import os, sys
from fabric_lab import lifecycle, no_processes, small_fabric
from moefabric.core.errors import MoefabricError
try:
    lifecycle.up(small_fabric(sys.argv[1]), no_processes)
except MoefabricError as error:
    print(error)
"""
OWNED = """
import os, sys
from fabric_lab import lifecycle, no_processes, small_fabric
lifecycle.up(small_fabric(sys.argv[1]), no_processes, owner=os.getpid())
print("up", flush=True)
hoard = []
while True:
    hoard.append(b"1" * 1_000_000)
"""
GONE_S = 10.0
"""How long anything of a fabric may outlive its killed owner."""
FULL = (
    UP
    + """
from moefabric.runtime.run_directory import RunDirectory, run_root
from moefabric.emulator.fabric import hardware_injection
run_dir = RunDirectory.of_fabric(sys.argv[1])
try:
    with (run_root() / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
except OSError as error:
    print(error.strerror)
hardware_injection.inject(run_dir, "nic", ["s0/o0"])
print(len(hardware_injection.injected_failures(run_dir)))
print(lifecycle.inspect(run_dir.name)["faults"], lifecycle.down(run_dir.name))
"""
)


def run_limited(machine: Machine, limit: str, script: str, name: str) -> list[str]:
    """Run a script with a mount namespace of its own, after a command of sh(1) that limits it."""
    argv = ["unshare", "--mount", "sh", "-c", f'{limit} && exec "$@"', "sh"]
    argv += [sys.executable, "-c", script, name]
    run = partial(
        subprocess.run, argv, cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    completed = machine.run(run)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.splitlines()


def tmpfs(machine: Machine, size: str) -> str:
    return f"mount -t tmpfs -o size={size} none {machine.folder}"


def assert_no_trace(machine: Machine, name: str, links_before: set[str]) -> None:
    assert (marked_pids(name), machine.links()) == ([], links_before)


def test_up_on_a_full_file_system_names_the_remedy_and_leaves_nothing(machine: Machine) -> None:
    before = machine.links()
    printed = run_limited(machine, tmpfs(machine, "4k"), UP, "full")
    assert len(printed) == 1
    assert "No space left on device; " in printed[0]
    assert "MOEFABRIC_RUN_DIR" in printed[0]
    assert_no_trace(machine, "full", before)


def test_fabric_on_a_file_system_that_fills_up_works_and_goes(machine: Machine) -> None:
    before = machine.links()
    printed = run_limited(machine, tmpfs(machine, "1m"), FULL, "filled")
    assert printed == ["No space left on device", "1", "[] True"]
    assert_no_trace(machine, "filled", before)


@pytest.mark.parametrize("limit", ["ulimit -n 64", "ulimit -n 16", "ulimit -v 150000"])
def test_up_with_few_descriptors_or_little_memory_works_or_leaves_nothing(
    machine: Machine, limit: str
) -> None:
    before = machine.links()
    printed = run_limited(machine, limit, UP, "limited")
    assert len(printed) <= 1, "an error is one line"
    assert machine.down("limited") == (not printed)
    assert_no_trace(machine, "limited", before)


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """Make a control group whose processes have so many bytes of memory together."""
    groups = [g for g in limiting_groups(os.getpid()) if list(g.glob("memory.*"))]
    if not groups:
        pytest.skip(f"{KERNEL_LACKS}control group of memory")
    group = groups[0] / f"moefabric-test-{os.getpid()}"
    group.mkdir()
    try:
        version_1 = group / "memory.limit_in_bytes"
        (version_1 if version_1.exists() else group / "memory.max").write_text(str(limit))
        yield group
    finally:
        # A process that has lost its memory is in the group until the kernel has released it.
        processes = group / "cgroup.procs"
        Deadline.after(GONE_S).wait_for(lambda: not processes.read_text(), "the end of the group")
        group.rmdir()


def kills(group: Path) -> int:
    """Return how many processes the kernel has killed for want of memory."""
    version_1 = group / "memory.oom_control"
    text = (version_1 if version_1.exists() else group / "memory.events").read_text()
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])


@pytest.mark.parametrize(("megabytes", "is_up"), [(60, False), (200, True)], ids=str)
def test_nothing_outlives_an_owner_that_the_kernel_kills_for_want_of_memory(
    machine: Machine, megabytes: int, is_up: bool
) -> None:
    before = machine.links()
    with memory_group(megabytes * 1_000_000) as group:
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        argv = [*enter, sys.executable, "-c", OWNED, "oom"]
        run = partial(
            subprocess.run,
            argv,
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        completed = machine.run(run)
        assert completed.returncode == -signal.SIGKILL, completed.stderr
        assert kills(group) > 0
        assert (completed.stdout == "up\n") == is_up
        Deadline.after(GONE_S).wait_for(
            lambda: not marked_pids("oom") and machine.links() == before, "the end of the fabric"
        )
    assert not machine.down("oom")


def descriptors(pid: int) -> int:
    """Return the number that a process's next descriptor would have at least."""
    return max(int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()) + 1


def test_fabric_process_without_descriptors_refuses_clients_and_ends_cleanly(
    machine: Machine,
) -> None:
    before, fabric = machine.links(), small_fabric("scarce")
    machine.up(fabric)
    pid = process_id(RunDirectory.of_fabric(fabric.name))
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, limits[1]))
        for _ in range(3):
            with pytest.raises(FabricError):
                lifecycle.inspect(fabric.name)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert lifecycle.inspect(fabric.name)["fabric"] == "scarce"
        assert process_id(RunDirectory.of_fabric(fabric.name)) == pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid), limits[1]))
    finally:
        assert machine.down(fabric.name)
    assert_no_trace(machine, fabric.name, before)
    assert not RunDirectory.of_fabric(fabric.name).path.exists()


def test_identity_is_a_secret_and_no_mark_shows_it(machine: Machine) -> None:
    fabric = small_fabric("hidden")
    wiring = machine.up(fabric)
    try:
        run_dir = RunDirectory.of_fabric(fabric.name)
        identity = run_dir.read_identity()
        assert stat.S_IMODE(run_dir.identity_file.stat().st_mode) == 0o600
        assert wiring.identity == run_dir.public_identity() != identity
        shown = machine.run(lambda: run(["ip", "-d", "link", "show"]))
        assert run_dir.public_identity() in shown
        assert identity[:12] not in shown
        assert identity[:12] not in run_dir.wiring_file.read_text()
    finally:
        machine.down(fabric.name)


def test_down_ends_though_marked_processes_start_again_and_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(marked_processes, "_KILL_S", 0.5)
    before, fabric = machine.links(), small_fabric("haunted")
    machine.up(fabric)
    marks = os.environ | marked_processes.mark_environment(fabric.name)
    stop, spawned = threading.Event(), list[subprocess.Popen[bytes]]()

    def haunt() -> None:
        while not stop.is_set():
            spawned.append(subprocess.Popen(["sleep", "60"], env=marks))

    threads = [threading.Thread(target=haunt) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        begin_s = time.monotonic()
        assert machine.down(fabric.name)
        assert time.monotonic() - begin_s < 20
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for process in spawned:
            process.kill()
            process.wait()
    assert "start again and again" in caplog.text
    assert machine.links() == before
    assert not RunDirectory.of_fabric(fabric.name).path.exists()


def test_only_controllers_get_the_password_of_the_optical_switch(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_PASSWORD", "unguessed")
    control = OcsControl("scpi", password_env="LAB_PASSWORD")
    region = Region("r0", 0, ("s0", "s1"), Ocs("ocs0", ports=2, control=control))
    fabric = Fabric("secret", (region,), 2, 1, 1, 50e6, Eps(servers_per_leaf=4))
    machine.run(partial(lifecycle.up, lifecycle.wanted(fabric, "bpf"), fabric_processes))
    try:
        have = dict[bool, set[bytes]]({True: set(), False: set()})
        for pid in marked_pids("secret"):
            # The server that forks controllers ends about now.
            with suppress(FileNotFoundError, ProcessLookupError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if environment := Path(f"/proc/{pid}/environ").read_bytes():
                    have[b"unguessed" in environment].add(command[2])
        assert have[True] == {b"moefabric.controller"}
        assert have[False]
    finally:
        machine.down("secret")


def test_variables_of_the_shell_reach_no_process_of_a_fabric(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "unguessed")
    monkeypatch.setenv("SOME_PASSWORD", "unguessed")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    machine.run(partial(lifecycle.up, small_fabric("clean"), fabric_processes))
    try:
        environments = [Path(f"/proc/{pid}/environ") for pid in marked_pids("clean")]
        # The servers that fork processes end about now.
        texts = [text for one in environments if (text := environment_text(one))]
        assert len(texts) >= 5
        assert not [text for text in texts if "unguessed" in text]
        assert any("NCCL_DEBUG=INFO" in text for text in texts)
        lab = Lab("clean")
        program = lab.popen("s1", "env", stdout=subprocess.PIPE, text=True)
        for printed in (lab.exec("s0", "env").stdout, program.communicate(timeout=20)[0]):
            assert "unguessed" not in printed
            assert "NCCL_DEBUG=INFO" in printed
        own = lab.popen("s1", "env", env={"OWN": "given"}, stdout=subprocess.PIPE, text=True)
        assert "OWN=given" in own.communicate(timeout=20)[0]
    finally:
        machine.down("clean")


def environment_text(file: Path) -> str:
    """Return the environment of a process; nothing if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return file.read_bytes().replace(b"\0", b"\n").decode()
    return ""
