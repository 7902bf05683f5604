"""`moefabric down` without a name removes what `up` left running, and no fabric of a run."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from moefabric.api.running_fabrics import removable_fabric
from moefabric.core.errors import SpecError
from moefabric.emulator.fabric.run_directories import hold, holder_pid
from moefabric.runtime.run_directory import RunDirectory

HOLD_FABRIC = """
import sys
from pathlib import Path
from moefabric.emulator.fabric.run_directories import hold
from moefabric.runtime.run_directory import RunDirectory
with hold(RunDirectory(Path(sys.argv[1]))):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    "running",
    [pytest.param(["mine"], id="alone"), pytest.param(["a-run-7", "mine"], id="beside-a-run")],
)
def test_down_chooses_only_fabric_without_run(running: Sequence[str]) -> None:
    assert removable_fabric(running, {"a-run-7": 7}) == "mine"


@pytest.mark.parametrize(
    ("running", "message"),
    [
        pytest.param(
            ["a-run-7"],
            "a-run-7 (of process 7) is up: left to the run; "
            "`moefabric down NAME` removes it nevertheless",
            id="a-run",
        ),
        pytest.param(
            ["a-run-7", "mine", "yours"],
            "a-run-7 (of process 7), mine, yours are up: choose one with `moefabric down NAME`",
            id="several",
        ),
    ],
)
def test_down_refuses_ambiguous_fabric(running: Sequence[str], message: str) -> None:
    with pytest.raises(SpecError) as error:
        removable_fabric(running, {"a-run-7": 7})
    assert str(error.value) == message


def test_fabric_is_held_until_process_releases_it(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path)
    assert holder_pid(run_dir) is None
    with hold(run_dir):
        assert holder_pid(run_dir) == os.getpid()
    assert holder_pid(run_dir) is None


def test_killed_process_releases_its_fabric(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_FABRIC, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert holder_pid(RunDirectory(tmp_path)) == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert holder_pid(RunDirectory(tmp_path)) is None
