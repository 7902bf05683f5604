"""The command line of the controllers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.runtime.waiting import Deadline
from tests.support.fabrics import fabric
from tests.support.switch_processes import listens


def controller(*arguments: str) -> tuple[int, str, str]:
    result = subprocess.run(
        [sys.executable, "-m", "moefabric.controller", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


def test_missing_fabric_is_reported_in_one_line_without_warnings(tmp_path: Path) -> None:
    """Deprecation warnings of Eventlet and distutils must not reach the terminal."""
    assert controller("--run-dir", str(tmp_path), "--eps") == (
        1,
        "",
        f"{tmp_path}: no fabric is wired there\n",
    )


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_controller_ends_by_a_signal_with_status_0(tmp_path: Path, stop: signal.Signals) -> None:
    number, run = os.getpid(), RunDirectory(tmp_path)
    management = ManagementNetwork(f"127.{number % 30 + 220}.{number // 30 % 250}.0/24")
    run.make_token()
    run.wiring_file.write_text(FabricWiring(fabric(0), management).to_json())
    eps = "--run-dir", str(tmp_path), "--eps"
    endpoint = management.northbound_endpoint(None)
    with subprocess.Popen([sys.executable, "-m", "moefabric.controller", *eps]) as process:
        try:
            Deadline.after(20).wait_for(lambda: listens(endpoint), "the controller")
            process.send_signal(stop)
            assert process.wait(10) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "one of the arguments --run-dir --watch is required", id="nothing"),
        pytest.param(
            ["--run-dir", "/x", "--watch", "/x"],
            "not allowed with argument --run-dir",
            id="both-places",
        ),
        pytest.param(
            ["--run-dir", "/x", "--eps", "--region", "r0"],
            "not allowed with argument --eps",
            id="both-parts",
        ),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: list[str], message: str) -> None:
    status, out, err = controller(*arguments)
    assert (status, out) == (2, "")
    assert message in err
