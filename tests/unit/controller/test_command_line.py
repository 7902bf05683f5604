"""The command line of the controllers."""

import subprocess
import sys
from pathlib import Path

import pytest


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
