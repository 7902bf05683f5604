"""The plugin of pytest in sessions of its own: workers, failures, and sessions that are ended."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moefabric.emulator.fabric.run_directories import fabrics_in_use
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.runtime.run_directory import run_root
from moefabric.runtime.waiting import Deadline
from tests.support.ci_examples import FILES, ci_commands
from tests.support.paths import EXAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("own_machine")]
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
PROGRAMS = {"moefabric": (), "pytest": ("-p", "no:cacheprovider", "-v")}
"""The programs of the examples for CI that a test runs, with options for the test."""
SUITE = """
import pytest

def test_fails(shared_fabric):
    shared_fabric.lit("s0~s1")
    shared_fabric.popen("s0", "sleep 600")
    shared_fabric.fault("nic", "s2/o0")
    with shared_fabric.capture("s0/o0"), shared_fabric.capture("s0/e0"):
        shared_fabric.exec("s0", f"ping -c 1 {shared_fabric.address('s1')}", check=True)
        assert shared_fabric.name is None

@pytest.fixture
def program(shared_fabric):
    assert shared_fabric.circuits() == shared_fabric.faults() == []
    raise RuntimeError("the program does not start")

def test_fails_in_its_set_up(program):
    pass

def test_removes_the_fabric(shared_fabric):
    shared_fabric.down()

def test_passes_on_a_new_fabric(shared_fabric):
    with shared_fabric.capture("s0/e0"):
        assert shared_fabric.exec("s0", "true").returncode == 0
"""
WAITING = """
def test_waits(shared_fabric):
    shared_fabric.popen("s1", "sleep 600")
    print("up", flush=True)
    shared_fabric.exec("s0", "sleep 600")
"""
RUNNING = """
def test_runs(run_experiment):
    run_experiment({file!r})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the example's configuration, and no tests."""
    for name in ("fabric.yaml", "pytest.ini"):
        shutil.copy(EXAMPLES / "pytest" / name, tmp_path)
    return tmp_path


def left_fabrics() -> list[str]:
    return [path.name for path in run_root().glob("[!.]*")]


@pytest.mark.nightly
def test_commands_of_ci_run(tmp_path: Path) -> None:
    """The example suite passes in two workers, and runs are compared."""
    skipped = shutil.ignore_patterns("moefabric-artefacts", "__pycache__")
    for name in ("ci", "data", "pytest"):
        shutil.copytree(EXAMPLES / name, tmp_path / "examples" / name, ignore=skipped)
    outputs = {}
    for program, *arguments in ci_commands(FILES[0]):
        if program in PROGRAMS:
            argv = [str(Path(sys.executable).with_name(program)), *arguments, *PROGRAMS[program]]
            run = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
            outputs[program, arguments[0]] = run.stdout
            # Another machine, or one with other work, may be slower than that of before.json.
            accepted = (0, 4) if arguments[0] == "compare" else (0,)
            assert run.returncode in accepted, (arguments, run.stdout, run.stderr)
    assert len(outputs) == 4
    suite = outputs["pytest", "--moefabric"]
    assert "5 passed" in suite
    assert set(re.findall(r"\[(gw\d)\]", suite)) == {"gw0", "gw1"}
    assert "iteration" in outputs["moefabric", "compare"]
    assert left_fabrics() == []
    assert not (tmp_path / "examples/pytest/moefabric-artefacts").exists()


def test_failures_leave_artefacts_and_no_fabric(folder: Path) -> None:
    (folder / "test_suite.py").write_text(SUITE)
    command = [*PYTEST, "--moefabric", "--moefabric-artefacts=kept", "-rA"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    outcomes = re.findall(r"^(\w+) test_suite.py::(\w+)", run.stdout, re.MULTILINE)
    assert set(outcomes) == {
        ("FAILED", "test_fails"),
        ("ERROR", "test_fails_in_its_set_up"),
        ("PASSED", "test_removes_the_fabric"),  # its clean-up then finds no fabric
        ("ERROR", "test_removes_the_fabric"),
        ("PASSED", "test_passes_on_a_new_fabric"),
    }, run.stdout
    assert "E       RuntimeError: the program does not start" in run.stdout
    assert left_fabrics() == []

    assert f"state, events and logs: {folder}/kept/test_suite.py-test_fails" in run.stdout
    kept = folder / "kept"
    assert {path.name for path in kept.iterdir()} == {
        "test_suite.py-test_fails",
        "test_suite.py-test_fails_in_its_set_up",
    }
    failed = kept / "test_suite.py-test_fails"
    state = json.loads((failed / "inspect.json").read_text())
    assert state["ocs"][0]["circuits"] == [["s0/o0", "s1/o0"]]
    events = [json.loads(line) for line in (failed / "events.jsonl").read_text().splitlines()]
    assert events[-1]["kind"] == "settled"
    assert (failed / "logs" / "fabric.log").exists()
    captures = {path.name: path.stat().st_size for path in failed.glob("*.pcap")}
    assert set(captures) == {"s0-o0.pcap", "s0-e0-1.pcap"}
    assert captures["s0-o0.pcap"] > captures["s0-e0-1.pcap"]  # two frames of ping, and none


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param(signal.SIGKILL, marks=pytest.mark.nightly),
    ],
    ids=lambda number: number.name,
)
def test_ended_session_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    (folder / "test_suite.py").write_text(WAITING)
    command = [*PYTEST, "--moefabric", "-s"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        while "up\n" not in (line := session.stdout.readline()):
            assert line, "the session has ended"
        (name,) = left_fabrics()
        session.send_signal(number)
        session.stdout.read()  # ends with the programs that the session has started
        assert session.wait(30) != 0
    wait_until_gone(name)


def wait_until_gone(name: str) -> None:
    """Wait until a fabric has removed itself; its process is no child of the test."""
    Deadline.after(30).wait_for(
        lambda: name not in left_fabrics() and not marked_pids(name), "the end of the fabric"
    )


@pytest.mark.nightly
def test_killed_session_leaves_no_fabric_of_an_experiment(folder: Path) -> None:
    experiment = str(EXAMPLES / "training.yaml")
    (folder / "test_suite.py").write_text(RUNNING.format(file=experiment))
    with subprocess.Popen([*PYTEST, "--moefabric"], cwd=folder, stdout=subprocess.PIPE) as session:
        Deadline.after(30).wait_for(lambda: bool(fabrics_in_use()), "the fabric of the experiment")
        ((name, pid),) = fabrics_in_use().items()
        assert pid == session.pid
        os.kill(session.pid, signal.SIGKILL)
    wait_until_gone(name)
