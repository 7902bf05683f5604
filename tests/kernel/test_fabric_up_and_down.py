"""A fabric comes up completely or not at all, is found by name, and goes without a trace."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moefabric.api.fabric_view import FabricView
from moefabric.api.lab import Lab
from moefabric.controller.client import wait_for_controllers
from moefabric.core.errors import ControlError, FabricError
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.emulator.linux.processes import ProcessRole, ProcessSpec
from moefabric.runtime.failure_log import FAILURE_LOG
from moefabric.runtime.run_directory import FabricWiring, RunDirectory, run_root
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.fabric_processes import fabric_processes
from tests.kernel.fabric_lab import Machine, ocs_process, ping, sleeper, small_fabric
from tests.support.namespaces import must

pytestmark = pytest.mark.ovs
FOLDER = Path(__file__).parent


def test_second_up_is_no_op_and_refuses_other_spec(machine: Machine, small: Fabric) -> None:
    pids = lifecycle.inspect(small.name)["processes"]
    assert machine.up(small).fabric == small
    assert lifecycle.inspect(small.name)["processes"] == pids
    with pytest.raises(FabricError, match="small: a fabric of this name runs with another spec"):
        machine.up(small_fabric("small", rate_bps=20e6))


def test_living_fabric_of_another_version_is_neither_cleared_nor_touched(
    machine: Machine, small: Fabric
) -> None:
    run_dir, pids = RunDirectory.of_fabric(small.name), lifecycle.inspect(small.name)["processes"]
    own, wiring = run_dir.version_file.read_text(), run_dir.wiring_file.read_text()
    assert json.loads(wiring)["version"] == own
    made = r"small: made by moefabric {}, and this is .*: `moefabric down small` with that version"
    for version, text in (("9.1", "9.1"), ("", "of an unknown version")):
        run_dir.version_file.write_text(version)
        run_dir.wiring_file.write_text('{"a later": "form"}')
        for refused in (partial(machine.up, small), partial(machine.down, small.name)):
            with pytest.raises(FabricError, match=made.format(text)):
                refused()
        with pytest.raises(FabricError, match=made.format(text)):
            _ = FabricView(small.name).wiring
    run_dir.version_file.write_text(own)
    with pytest.raises(
        FabricError, match=r"small runs, and this moefabric .* can't read .*--force"
    ):
        machine.up(small)
    run_dir.wiring_file.write_text(wiring)
    assert machine.up(small).fabric == small
    assert lifecycle.inspect(small.name)["processes"] == pids


def test_forced_down_removes_a_fabric_of_another_version(machine: Machine) -> None:
    machine.up(small_fabric("older"))
    RunDirectory.of_fabric("older").version_file.write_text("0.0.1")
    assert machine.run(partial(lifecycle.down, "older", force=True))
    assert "older" not in lifecycle.running_fabrics()
    assert not marked_pids("older")


def test_two_fabrics_run_side_by_side(machine: Machine, small: Fabric) -> None:
    other = small_fabric("other")
    subnets = {machine.up(small).management.subnet, machine.up(other).management.subnet}
    assert len(subnets) == 2
    assert {"other", "small"} <= set(lifecycle.running_fabrics())
    assert machine.down("other")
    assert "other" not in lifecycle.running_fabrics()
    machine.route_by(small, "e0")
    assert ping(machine, small)


def test_down_spares_fabric_of_same_name_in_other_folder(machine: Machine, small: Fabric) -> None:
    before = machine.links()
    os.environ["MOEFABRIC_RUN_DIR"] = str(machine.folder / "elsewhere")
    try:
        assert not machine.down(small.name)
    finally:
        os.environ["MOEFABRIC_RUN_DIR"] = str(machine.folder)
    assert machine.links() == before
    assert lifecycle.inspect(small.name)["faults"] == []


def test_up_avoids_subnet_with_listener(machine: Machine) -> None:
    with machine.run(socket.socket) as listener:
        listener.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND: its interface is gone
        listener.bind(("198.18.0.1", 6654))
        listener.listen()
        subnet = machine.up(small_fabric("beside")).management.subnet
    assert subnet != "198.18.0.0/24"
    assert machine.down("beside")


def test_down_leaves_nothing_and_second_down_is_no_op(machine: Machine) -> None:
    before = machine.links()
    machine.up(small_fabric("gone"), lambda *_: [sleeper("s0"), sleeper("outer", "outside")])
    assert len(marked_pids("gone")) > 4
    assert machine.down("gone")
    assert_no_trace(machine, "gone", before)
    assert not machine.down("gone")


def test_wait_for_controllers_ends_with_the_fabric(machine: Machine) -> None:
    wiring = machine.up(small_fabric("gone"))
    machine.down("gone")
    with pytest.raises(ControlError, match="gone: was taken down before its controllers were"):
        machine.run(partial(wait_for_controllers, wiring, 60))


def test_down_removes_everything_after_fabric_process_was_killed(machine: Machine) -> None:
    before = machine.links()
    machine.up(small_fabric("killed"), lambda *_: [sleeper("s0"), sleeper("outer", "outside")])
    os.kill(daemon_pid("killed"), signal.SIGKILL)
    assert machine.down("killed")
    assert_no_trace(machine, "killed", before)


def agents(wiring: FabricWiring, run_dir: RunDirectory) -> list[ProcessSpec]:
    specs = fabric_processes(wiring, run_dir)
    return [spec for spec in specs if spec.role is ProcessRole.AGENT]


def daemon_pid(name: str) -> int:
    return next(
        pid
        for pid in marked_pids(name)
        if "moefabric.emulator.fabric.daemon" in Path(f"/proc/{pid}/cmdline").read_text()
    )


def assert_no_trace(machine: Machine, name: str, links_before: set[str]) -> None:
    exists = RunDirectory.of_fabric(name).path.exists()
    assert (marked_pids(name), machine.links(), exists) == ([], links_before, False)


def test_dead_agents_are_reported_and_others_end_with_fabric(machine: Machine) -> None:
    before = machine.links()
    machine.up(small_fabric("crash"), agents)
    processes = {one["name"]: one for one in lifecycle.inspect("crash")["processes"]}
    host = processes["agents-0"]
    os.kill(host["pid"], signal.SIGKILL)
    Deadline.after(30).wait_for(lambda: bool(lifecycle.inspect("crash")["faults"]), "fault")
    ended = ", ".join(f"agent-{server}" for server in host["servers"])
    assert lifecycle.inspect("crash")["faults"] == [
        f"agents-0 ended (signal 9), saying: nothing; with it ended {ended}"
    ]
    os.kill(daemon_pid("crash"), signal.SIGKILL)
    assert machine.down("crash")
    assert_no_trace(machine, "crash", before)


def test_up_restarts_fabric_that_lost_process(machine: Machine) -> None:
    fabric = small_fabric("half")
    machine.up(fabric, lambda *_: [sleeper("s0")])
    processes = lifecycle.inspect("half")["processes"]
    pids = {process["name"]: process["pid"] for process in processes}
    os.kill(pids["sleeper"], signal.SIGKILL)
    Deadline.after(30).wait_for(lambda: bool(lifecycle.inspect("half")["faults"]), "fault")
    machine.up(fabric, lambda *_: [sleeper("s0")])
    assert lifecycle.inspect("half")["faults"] == []
    assert machine.down("half")


def test_up_ignores_modules_in_callers_folder(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("agents", "controller", "emulator", "moefabric"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    machine.up(small_fabric("named"), agents)
    assert lifecycle.inspect("named")["faults"] == []
    assert machine.down("named")


def failing(node: str, output: str) -> ProcessSpec:
    return ProcessSpec(
        "faulty",
        node,
        (sys.executable, "-c", f"print('{output}'); raise SystemExit(3)"),
        role=ProcessRole.AGENT,
    )


@pytest.mark.parametrize("node", ["outer", "s1"])
def test_process_that_ends_at_once_fails_up_with_its_last_line(machine: Machine, node: str) -> None:
    before = machine.links()
    with pytest.raises(FabricError, match="faulty exited 3, saying: no port for me"):
        machine.up(small_fabric("early"), lambda *_: [failing(node, "no port for me")])
    assert_no_trace(machine, "early", before)


def test_controller_that_never_listens_fails_up_in_time(machine: Machine) -> None:
    start = partial(
        lifecycle.up,
        small_fabric("deaf"),
        lambda *_: [sleeper("outer", role=ProcessRole.CONTROLLER)],
        timeout_s=3,
    )
    with pytest.raises(
        FabricError, match=r"a controller at 198\.18\..*:6653.* was not ready in time"
    ):
        machine.run(start)
    assert (marked_pids("deaf"), RunDirectory.of_fabric("deaf").path.exists()) == ([], False)


SLOW_UP = """
from functools import partial
from fabric_lab import ProcessRole, lifecycle, sleeper, small_fabric
controller = sleeper("outer", role=ProcessRole.CONTROLLER)
lifecycle.up(small_fabric("cut"), lambda *_: [controller], on_stage=partial(print, flush=True))
"""


@pytest.mark.parametrize("stage", ["management network", "servers", "optics", "controllers"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_interrupted_up_leaves_nothing(
    machine: Machine, stage: str, number: signal.Signals
) -> None:
    before = machine.links()
    argv = [sys.executable, "-c", SLOW_UP]
    start = partial(
        subprocess.Popen,
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=FOLDER,
    )
    process: Any = machine.run(start)
    with process as up:
        next(line for line in up.stdout if line.strip() == stage)
        up.send_signal(number)
        up.wait(timeout=20)
    assert up.returncode != 0
    Deadline.after(10).wait_for(lambda: marked_pids("cut") == [], "end of all processes")
    assert machine.links() == before
    assert number is signal.SIGKILL or not RunDirectory.of_fabric("cut").path.exists()


UNSENT_REQUEST = """
import os, signal
from fabric_lab import lifecycle, no_processes, small_fabric
from moefabric.emulator.fabric import daemon_start
daemon_start.wait_ready = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
lifecycle.up(small_fabric("unsent"), no_processes)
"""


def test_up_killed_before_its_request_leaves_nothing(machine: Machine) -> None:
    before, run_dir = machine.links(), RunDirectory.of_fabric("unsent")
    argv = [sys.executable, "-c", UNSENT_REQUEST]
    up = machine.run(partial(subprocess.run, argv, cwd=FOLDER, timeout=30, check=False))
    assert up.returncode == -signal.SIGKILL
    Deadline.after(10).wait_for(lambda: not run_dir.path.exists(), "the end of the run directory")
    Deadline.after(10).wait_for(lambda: marked_pids("unsent") == [], "the end of all processes")
    assert machine.links() == before


def test_unshapeable_rate_is_refused_before_anything_is_made(machine: Machine) -> None:
    with pytest.raises(FabricError, match="s0/o0: 50000 b/s is too slow to shape"):
        machine.up(small_fabric("slow", rate_bps=50e3))
    assert not RunDirectory.of_fabric("slow").path.exists()


def test_up_waits_for_external_ocs_process(machine: Machine) -> None:
    fabric = small_fabric("apart")
    argv = [
        sys.executable,
        "-m",
        "moefabric.emulator.ocs",
        "--socket",
        str(RunDirectory.of_fabric("apart").path / "ocs0.handoff"),
        "--deadline",
        "30",
    ]
    with subprocess.Popen(argv, cwd=FOLDER) as ocs:
        machine.run(partial(lifecycle.up, fabric, ocs_process, external=frozenset({"ocs"})))
        assert "ocs0" not in {
            process["name"] for process in lifecycle.inspect("apart")["processes"]
        }
        assert ocs.poll() is None
        assert machine.down("apart")
        assert ocs.wait(timeout=10) == 0


@pytest.mark.skipif(
    not all(folder.stat().st_mode & 0o005 == 0o005 for folder in (FOLDER, *FOLDER.parents)),
    reason="needs a repository that all users may read",
)
def test_ocs_and_controllers_in_other_containers_need_neither_root_nor_capabilities(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, fabric, root = 65533, small_fabric("apart"), str(run_root())
    monkeypatch.setenv("SUDO_UID", str(user))
    machine.folder.chmod(0o755)
    machine.run(partial(must, "ip", "link", "set", "lo", "up"))  # leads to the controllers
    ids: dict[str, Any] = {"user": user, "group": user, "extra_groups": []}
    with ExitStack() as undo:
        for words in ("emulator.ocs", "--forever", "--socket"), ("controller", "--watch"):
            argv = [sys.executable, "-m", f"moefabric.{words[0]}", *words[1:], root]
            start = partial(subprocess.Popen, argv, cwd=FOLDER, **ids)
            process: Any = undo.enter_context(machine.run(start))
            undo.callback(process.terminate)
        roles = frozenset({"ocs", "controller"})
        wiring = machine.run(partial(lifecycle.up, fabric, fabric_processes, external=roles))
        try:
            machine.run(partial(wait_for_controllers, wiring, 30))
            lit = machine.run(lambda: Lab("apart").light("s0~s1").circuits_after)
            assert list(lit) == ["s0/o0~s1/o0"]
            run_dir = RunDirectory.of_fabric("apart")
            logs = [*run_dir.log_folder.glob("controller-*.jsonl"), run_dir.path / FAILURE_LOG]
            assert [file.stat().st_uid for file in logs] == [user] * 3
        finally:
            assert machine.down("apart")


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden"])
def test_name_that_leads_elsewhere_is_refused(machine: Machine, name: str) -> None:
    with pytest.raises(FabricError, match="can't be a fabric's name"):
        machine.down(name)


def test_up_and_down_spare_foreign_directory(machine: Machine) -> None:
    file = RunDirectory.of_fabric("theirs").path / "letter"
    file.parent.mkdir()
    file.write_text("dear")
    for command in (partial(machine.up, small_fabric("theirs")), partial(machine.down, "theirs")):
        with pytest.raises(FabricError, match="not a fabric's, and not empty"):
            command()
    assert file.read_text() == "dear"
    shutil.rmtree(file.parent)


def test_process_on_unknown_server_is_refused(machine: Machine) -> None:
    with pytest.raises(FabricError, match="sleeper: processes run on outer, s0, s1, ocs0"):
        machine.up(small_fabric("lost"), lambda *_: [sleeper("s7")])
    assert not RunDirectory.of_fabric("lost").path.exists()
