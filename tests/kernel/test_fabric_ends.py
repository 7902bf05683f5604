"""A fabric ends with its owner, foreign processes survive, and nothing waits for ever."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric import lifecycle, management_uplink, run_directories
from moefabric.emulator.fabric.daemon_protocol import SilentFabricError, process_id
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.emulator.linux.processes import ProcessRole
from moefabric.runtime.processes import is_stopped
from moefabric.runtime.run_directory import FABRIC_VARIABLE, IDENTITY_VARIABLE, RunDirectory
from moefabric.runtime.waiting import Deadline
from tests.kernel.fabric_lab import Machine, sleeper, small_fabric

pytestmark = pytest.mark.ovs
FOLDER = Path(__file__).parent
OWNED_UP = """
import os, signal, sys
from fabric_lab import lifecycle, no_processes, small_fabric
lifecycle.up(small_fabric(sys.argv[1]), no_processes, owner=os.getpid())
print(flush=True)
signal.pause()
"""


@contextmanager
def owned(machine: Machine, name: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process with whose end a fabric ends."""
    argv = [sys.executable, "-c", OWNED_UP, name]
    with machine.run(
        partial(subprocess.Popen, argv, stdout=subprocess.PIPE, text=True, cwd=FOLDER)
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "\n"
        try:
            yield process
        finally:
            process.kill()


def is_gone(machine: Machine, name: str, links_before: set[str]) -> bool:
    gone = not RunDirectory.of_fabric(name).path.exists() and machine.links() == links_before
    return gone and not marked_pids(name)


def wait_dead(*names: str) -> None:
    """Wait until the kernel has ended killed fabric processes, which hold their life files."""
    Deadline.after(30).wait_for(
        lambda: not any(RunDirectory.of_fabric(name).is_alive() for name in names),
        "the end of the fabric processes",
    )


def test_fabric_of_killed_owner_removes_itself(machine: Machine) -> None:
    before = machine.links()
    with owned(machine, "owned") as process:
        assert lifecycle.owner("owned") == process.pid
        process.kill()
    Deadline.after(10).wait_for(partial(is_gone, machine, "owned", before), "the end of the fabric")


def test_owner_changes_and_fabric_without_owner_stays(machine: Machine) -> None:
    with owned(machine, "kept") as process:
        lifecycle.disown("kept")
        assert lifecycle.owner("kept") == process.pid, "only the owner itself disowns a fabric"
        lifecycle.own("kept")
        assert lifecycle.owner("kept") == os.getpid()
        lifecycle.disown("kept")
    assert lifecycle.owner("kept") is None
    assert machine.down("kept")


def test_up_removes_what_owner_and_fabric_process_left_when_both_were_killed(
    machine: Machine,
) -> None:
    before = machine.links()
    with owned(machine, "both") as process:
        fabric_process = process_id(RunDirectory.of_fabric("both"))
        os.kill(fabric_process, signal.SIGSTOP)  # it shall not see the end of its owner
        process.kill()
        os.kill(fabric_process, signal.SIGKILL)
    wait_dead("both")
    assert marked_pids("both")
    machine.up(small_fabric("next"))
    assert not RunDirectory.of_fabric("both").path.exists()
    assert machine.down("next")
    assert is_gone(machine, "both", before)


def test_bare_removal_takes_all_remains_and_no_living_fabric(machine: Machine) -> None:
    machine.up(small_fabric("alive"))
    for name in ("dead1", "dead2"):
        machine.up(small_fabric(name))
    for name in ("dead1", "dead2"):
        os.kill(process_id(RunDirectory.of_fabric(name)), signal.SIGKILL)
    wait_dead("dead1", "dead2")
    assert machine.run(lifecycle.remove_remains) == ["dead1", "dead2"]
    assert lifecycle.running_fabrics() == ["alive"]
    assert machine.down("alive")


def test_stopped_fabric_process_is_neither_dead_nor_waited_for(machine: Machine) -> None:
    before, fabric = machine.links(), small_fabric("stopped")
    machine.up(fabric)
    pid = process_id(RunDirectory.of_fabric("stopped"))
    os.kill(pid, signal.SIGSTOP)
    remedy = (
        f"stopped: its process {pid} is stopped: `kill -CONT {pid}`, or `moefabric down --force"
    )
    counters = partial(EmulatedPortCounters, RunDirectory.of_fabric("stopped"), reply_s=60)
    for command in (partial(machine.up, fabric), partial(machine.down, "stopped"), counters):
        with pytest.raises(SilentFabricError, match=remedy):
            command()
    assert is_stopped(pid)
    assert machine.run(partial(lifecycle.down, "stopped", force=True))
    assert is_gone(machine, "stopped", before)


def test_fabric_process_that_is_stopped_at_its_start_fails_up_in_time(machine: Machine) -> None:
    before = machine.links()

    def stop(_stage: str) -> None:
        for pid in marked_pids("frozen"):
            os.kill(pid, signal.SIGSTOP)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("moefabric.emulator.fabric.daemon_start._REPORT_S", 0.5)
        start = partial(
            lifecycle.up, small_fabric("frozen"), lambda *_: [], timeout_s=2, on_stage=stop
        )
        with pytest.raises(FabricError, match="frozen: the fabric process did not report in time"):
            machine.run(start)
    assert is_gone(machine, "frozen", before)


def test_failed_up_keeps_its_logs_until_the_next_success(machine: Machine) -> None:
    controller = sleeper("outer", role=ProcessRole.CONTROLLER)
    start = partial(lifecycle.up, small_fabric("logs"), lambda *_: [controller], timeout_s=2)
    with pytest.raises(FabricError, match="not ready in time; its logs are in ") as failure:
        machine.run(start)
    kept = Path(str(failure.value).rpartition(" ")[2])
    assert "was not ready in time" in (kept / "fabric.log").read_text()
    machine.up(small_fabric("logs"))
    assert not kept.exists()
    assert machine.down("logs")


@pytest.mark.parametrize("namespaces", [["--pid", "--mount-proc"], ["--mount"]])
def test_down_spares_process_of_the_same_name_in_another_container(
    machine: Machine, namespaces: list[str]
) -> None:
    """The other container has the same name, the same path and another folder at that path."""
    machine.up(small_fabric("twin"))
    root = str(machine.folder)
    script = f"mount -t tmpfs none {root} && echo ready && exec sleep 60"
    marks = {FABRIC_VARIABLE: "twin", IDENTITY_VARIABLE: "theirs", "MOEFABRIC_RUN_DIR": root}
    foreign = {**os.environ, **marks}
    argv = ["unshare", "--mount", "--fork", "--kill-child", *namespaces, "sh", "-c", script]
    with subprocess.Popen(argv, env=foreign, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            assert machine.down("twin")
            assert not machine.down("twin"), "without run directory, nothing is the fabric's"
            assert process.poll() is None
        finally:
            process.kill()


def test_relative_folder_of_run_directories_means_one_place(
    machine: Machine, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (short_folder / name).mkdir()
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", "run")
    monkeypatch.chdir(short_folder / "here")
    machine.up(small_fabric("same"), lambda *_: [sleeper("s0")])
    monkeypatch.chdir(short_folder / "there")
    assert not machine.down("same")
    monkeypatch.chdir(short_folder / "here")
    assert lifecycle.inspect("same")["faults"] == []
    assert machine.down("same")


def together(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Make calls at once and return their errors."""
    errors: list[BaseException | None] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def make(number: int, call: Callable[[], object]) -> None:
        barrier.wait(10)
        try:
            call()
        except FabricError as error:
            errors[number] = error

    threads = [threading.Thread(target=make, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return errors


def test_concurrent_ups_of_one_name_make_one_fabric(machine: Machine) -> None:
    before, fabric = machine.links(), small_fabric("one")
    wirings: list[str] = []

    def up() -> None:
        wirings.append(machine.up(fabric).identity)

    assert together(up, up, up) == [None] * 3
    assert len(set(wirings)) == 1
    assert together(*[partial(machine.down, "one")] * 2) == [None, None]
    assert is_gone(machine, "one", before)


def test_concurrent_ups_of_many_names_and_a_down_disturb_nobody(machine: Machine) -> None:
    before = machine.links()
    machine.up(small_fabric("leaves"))
    names = ["many1", "many2", "many3"]
    ups = [partial(machine.up, small_fabric(name)) for name in names]
    assert together(*ups, partial(machine.down, "leaves")) == [None] * 4
    assert lifecycle.running_fabrics() == names
    assert together(*[partial(machine.down, name) for name in names]) == [None] * 3
    assert all(is_gone(machine, name, before) for name in names)


def test_up_during_down_of_the_same_name_leaves_whole_fabric_or_none(machine: Machine) -> None:
    before, fabric = machine.links(), small_fabric("both-ways")
    machine.up(fabric)
    errors = together(partial(machine.down, fabric.name), partial(machine.up, fabric))
    assert errors == [None, None]
    if lifecycle.running_fabrics():
        assert lifecycle.inspect(fabric.name)["faults"] == []
        assert machine.down(fabric.name)
    assert is_gone(machine, fabric.name, before)


def test_down_removes_an_uplink_that_has_no_alias_yet(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, run_dir = machine.links(), RunDirectory.of_fabric("bare")
    monkeypatch.setattr(management_uplink, "_run_ip", lambda *_commands: None)
    with run_directories.lock(run_dir):
        run_dir.make_identity()
        machine.run(partial(management_uplink.claim_subnet, "bare"))
    assert len(machine.links() - before) == 2
    assert machine.down("bare")
    assert machine.links() == before
