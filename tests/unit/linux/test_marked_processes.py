"""Processes that a fabric's removal finds by their environment."""

import os
import subprocess
from pathlib import Path

import pytest

from moefabric.emulator.linux.marked_processes import marked_pids

NAME = "marked-in-a-unit-test"


@pytest.mark.parametrize(
    ("variables", "is_marked"),
    [
        ({"MOEFABRIC_FABRIC": NAME, "MOEFABRIC_IDENTITY": "1f"}, True),
        ({"MOEFABRIC_FABRIC": NAME}, False),
        ({"MOEFABRIC_FABRIC": "another", "MOEFABRIC_IDENTITY": "1f"}, False),
    ],
)
def test_shell_that_names_a_fabric_which_is_down_is_none_of_its_processes(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_marked: bool
) -> None:
    """`down` is repeated with MOEFABRIC_FABRIC and MOEFABRIC_RUN_DIR in the user's shell."""
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))
    with subprocess.Popen(["sleep", "60"], env=os.environ | variables) as process:
        assert (process.pid in marked_pids(NAME)) == is_marked
        process.kill()
