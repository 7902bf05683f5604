"""`moefabric down` without a name takes what `up` has left running, and nothing that a run still works on."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator.run_dir import held, holder
from moefabric.commands.fabric import left_running
from moefabric.errors import SpecError
from moefabric.management import RunDir

HOLDS = """
import sys
from pathlib import Path
from emulator.run_dir import held
from moefabric.management import RunDir
with held(RunDir(Path(sys.argv[1]))):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    "running",
    [pytest.param(["mine"], id="alone"), pytest.param(["a-run-7", "mine"], id="beside-a-run")],
)
def test_what_up_has_left_is_meant(running: Sequence[str]) -> None:
    assert left_running(running, {"a-run-7": 7}) == "mine"


@pytest.mark.parametrize(
    ("running", "said"),
    [
        pytest.param(
            ["a-run-7"],
            "a-run-7 (of process 7) is up: left to the run; `moefabric down NAME` takes it all the same",
            id="a-run",
        ),
        pytest.param(
            ["a-run-7", "mine", "yours"],
            "a-run-7 (of process 7), mine, yours are up: say which, `moefabric down NAME`",
            id="several",
        ),
    ],
)
def test_nothing_is_taken_that_may_not_be_meant(running: Sequence[str], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        left_running(running, {"a-run-7": 7})
    assert str(refused.value) == said


def test_a_fabric_serves_a_process_until_that_lets_go(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert holder(run_dir) is None
    with held(run_dir):
        assert holder(run_dir) == os.getpid()
    assert holder(run_dir) is None


def test_a_process_that_is_killed_lets_go(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert holder(RunDir(tmp_path)) == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert holder(RunDir(tmp_path)) is None
