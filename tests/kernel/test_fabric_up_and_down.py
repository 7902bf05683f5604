"""A fabric comes up whole or not at all, is found again, and goes without a trace, whatever happens to it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from emulator import lifecycle
from emulator.order import NODES
from emulator.processes import Process, Role, marked
from emulator.waiting import Deadline
from moefabric.errors import FabricError
from moefabric.experiment.programs import processes
from moefabric.management import RunDir, Wiring
from moefabric.topology import Fabric
from tests.kernel.fabric_lab import NEEDS, Machine, ocs_process, ping, sleeper, wired

pytestmark = NEEDS
HERE = Path(__file__).parent


def test_up_twice_is_one_fabric_and_another_spec_is_refused(machine: Machine, fabric: Fabric) -> None:
    pids = lifecycle.inspect(fabric.name)["processes"]
    assert machine.up(fabric).fabric == fabric
    assert lifecycle.inspect(fabric.name)["processes"] == pids
    with pytest.raises(FabricError, match="small: a fabric of this name runs with another spec"):
        machine.up(wired("small", rate_bps=20e6))


def test_two_fabrics_live_side_by_side(machine: Machine, fabric: Fabric) -> None:
    other = wired("other")
    subnets = {machine.up(fabric).management.subnet, machine.up(other).management.subnet}
    assert len(subnets) == 2
    assert {"other", "small"} <= set(lifecycle.running())
    assert machine.down("other")
    assert "other" not in lifecycle.running()
    machine.by(fabric, "e0")
    assert ping(machine, fabric)


def test_down_leaves_a_fabric_of_the_same_name_in_another_folder_alone(
    machine: Machine, fabric: Fabric
) -> None:
    before = machine.links()
    os.environ["MOEFABRIC_RUN_DIR"] = str(machine.folder / "elsewhere")
    try:
        assert not machine.down(fabric.name)
    finally:
        os.environ["MOEFABRIC_RUN_DIR"] = str(machine.folder)
    assert machine.links() == before
    assert lifecycle.inspect(fabric.name)["faults"] == []


def test_an_address_that_somebody_listens_on_is_not_taken(machine: Machine) -> None:
    with machine.here(socket.socket) as left:
        left.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND: its interface is gone
        left.bind(("198.18.0.1", 6654))
        left.listen()
        subnet = machine.up(wired("beside")).management.subnet
    assert subnet != "198.18.0.0/24"
    assert machine.down("beside")


def test_down_leaves_nothing_and_twice_is_a_no_op(machine: Machine) -> None:
    before = machine.links()
    machine.up(wired("gone"), lambda *_: [sleeper("s0"), sleeper("outer", "outside")])
    assert len(marked("gone")) > 4
    assert machine.down("gone")
    assert (marked("gone"), machine.links(), RunDir.named("gone").path.exists()) == ([], before, False)
    assert not machine.down("gone")


def test_down_finds_everything_after_the_fabric_process_was_killed(machine: Machine) -> None:
    before = machine.links()
    machine.up(wired("killed"), lambda *_: [sleeper("s0"), sleeper("outer", "outside")])
    fabric_process = next(
        pid for pid in marked("killed") if "emulator.fabricd" in Path(f"/proc/{pid}/cmdline").read_text()
    )
    os.kill(fabric_process, signal.SIGKILL)
    assert machine.down("killed")
    assert (marked("killed"), machine.links(), RunDir.named("killed").path.exists()) == ([], before, False)


def agents(wiring: Wiring, run_dir: RunDir) -> list[Process]:
    return [one for one in processes(wiring, run_dir) if one.role is Role.AGENT]


def test_an_agent_that_dies_is_named_and_all_others_go_with_the_fabric_however_that_ends(
    machine: Machine,
) -> None:
    before = machine.links()
    machine.up(wired("crash"), agents)
    pids = {one["name"]: one["pid"] for one in lifecycle.inspect("crash")["processes"]}
    assert Path(f"/proc/{pids['agent-s1']}/ns/net").samefile(
        f"/proc/{json.loads((RunDir.named('crash').path / NODES).read_text())['s1']}/ns/net"
    )
    os.kill(pids["agent-s0"], signal.SIGKILL)
    Deadline.after(5).until(lambda: bool(lifecycle.inspect("crash")["faults"]), "fault")
    assert lifecycle.inspect("crash")["faults"] == ["agent-s0 exited -9, saying: nothing"]
    os.kill(
        next(
            pid for pid in marked("crash") if "emulator.fabricd" in Path(f"/proc/{pid}/cmdline").read_text()
        ),
        signal.SIGKILL,
    )
    assert machine.down("crash")
    assert (marked("crash"), machine.links(), RunDir.named("crash").path.exists()) == ([], before, False)


def test_up_mends_a_fabric_that_lost_a_process(machine: Machine) -> None:
    fabric = wired("half")
    machine.up(fabric, lambda *_: [sleeper("s0")])
    os.kill(
        next(p["pid"] for p in lifecycle.inspect("half")["processes"] if p["name"] == "sleeper"),
        signal.SIGKILL,
    )
    Deadline.after(5).until(lambda: bool(lifecycle.inspect("half")["faults"]), "fault")
    machine.up(fabric, lambda *_: [sleeper("s0")])
    assert lifecycle.inspect("half")["faults"] == []
    assert machine.down("half")


def test_a_folder_of_one_of_our_names_is_not_taken_for_ours(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("agents", "controller", "emulator", "moefabric"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    machine.up(wired("named"), agents)
    assert lifecycle.inspect("named")["faults"] == []
    assert machine.down("named")


def failing(where: str, says: str) -> Process:
    return Process(
        "faulty", where, (sys.executable, "-c", f"print('{says}'); raise SystemExit(3)"), role=Role.AGENT
    )


@pytest.mark.parametrize("where", ["outer", "s1"])
def test_a_process_that_ends_at_once_fails_up_with_its_last_words_and_leaves_nothing(
    machine: Machine, where: str
) -> None:
    before = machine.links()
    with pytest.raises(FabricError, match="faulty exited 3, saying: no port for me"):
        machine.up(wired("early"), lambda *_: [failing(where, "no port for me")])
    assert (marked("early"), machine.links(), RunDir.named("early").path.exists()) == ([], before, False)


def test_a_controller_that_never_listens_fails_up_in_time(machine: Machine) -> None:
    start = partial(
        lifecycle.up, wired("deaf"), lambda *_: [sleeper("outer", role=Role.CONTROLLER)], timeout_s=3
    )
    with pytest.raises(FabricError, match=r"a controller at 198\.18\..*:6653.* was not ready in time"):
        machine.here(start)
    assert (marked("deaf"), RunDir.named("deaf").path.exists()) == ([], False)


SLOW_UP = """
from fabric_lab import Role, lifecycle, sleeper, wired
lifecycle.up(wired("cut"), lambda *_: [sleeper("outer", role=Role.CONTROLLER)], say=lambda stage: print(stage, flush=True))
"""


@pytest.mark.parametrize("stage", ["management network", "servers", "optics", "controllers"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_an_up_that_is_interrupted_leaves_nothing(
    machine: Machine, stage: str, number: signal.Signals
) -> None:
    before = machine.links()
    argv = [sys.executable, "-c", SLOW_UP]
    start = partial(
        subprocess.Popen, argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=HERE
    )
    started: Any = machine.here(start)
    with started as up:
        next(line for line in up.stdout if line.strip() == stage)
        up.send_signal(number)
        up.wait(timeout=20)
    assert up.returncode != 0
    Deadline.after(10).until(lambda: marked("cut") == [], "end of all processes")
    assert machine.links() == before
    assert number is signal.SIGKILL or not RunDir.named("cut").path.exists()


def test_what_this_machine_cannot_shape_is_refused_before_anything_is_made(machine: Machine) -> None:
    with pytest.raises(FabricError, match="s0/o0: 50000 b/s is too slow to shape"):
        machine.up(wired("slow", rate_bps=50e3))
    assert not RunDir.named("slow").path.exists()


def test_an_ocs_process_that_others_start_is_waited_for(machine: Machine) -> None:
    fabric = wired("apart")
    argv = [
        sys.executable,
        "-m",
        "emulator.ocs",
        "--plant",
        str(RunDir.named("apart").path / "ocs0.plant"),
        "--deadline",
        "30",
    ]
    with subprocess.Popen(argv, cwd=HERE) as apart:
        machine.here(partial(lifecycle.up, fabric, ocs_process, external=frozenset({"ocs0"})))
        assert "ocs0" not in {process["name"] for process in lifecycle.inspect("apart")["processes"]}
        assert apart.poll() is None
        assert machine.down("apart")
        assert apart.wait(timeout=10) == 0


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden"])
def test_a_name_that_leads_elsewhere_is_refused(machine: Machine, name: str) -> None:
    with pytest.raises(FabricError, match="can't be a fabric's name"):
        machine.down(name)


def test_a_directory_of_somebody_else_is_left_alone(machine: Machine) -> None:
    theirs = RunDir.named("theirs").path / "letter"
    theirs.parent.mkdir()
    theirs.write_text("dear")
    for act in (partial(machine.up, wired("theirs")), partial(machine.down, "theirs")):
        with pytest.raises(FabricError, match="not a fabric's, and not empty"):
            act()
    assert theirs.read_text() == "dear"
    shutil.rmtree(theirs.parent)


def test_a_process_for_a_server_that_is_not_there_is_refused(machine: Machine) -> None:
    with pytest.raises(FabricError, match="sleeper: processes run on outer, s0, s1, ocs0"):
        machine.up(wired("lost"), lambda *_: [sleeper("s7")])
    assert not RunDir.named("lost").path.exists()
