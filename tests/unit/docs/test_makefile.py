"""Targets of the Makefile."""

import subprocess
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY


def demo(folder: Path, prototype: int, moving_light: int) -> subprocess.CompletedProcess[str]:
    """Make the demo with runs that end with these statuses."""
    program = folder / "moefabric"
    cases = f"*prototype*) exit {prototype};; *) exit {moving_light};;"
    program.write_text(f'#!/bin/sh\necho ran "$2"\ncase $2 in {cases} esac\n')
    program.chmod(0o755)
    file = f"--file={REPOSITORY}/Makefile"
    words = ["make", file, "--old-file=setup-run", "demo", f"bin={folder}"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("statuses", "worst"), [((3, 1), 1), ((1, 3), 1), ((0, 3), 3), ((2, 0), 2)]
)
def test_a_fault_of_the_demo_outweighs_an_invalid_run(
    statuses: tuple[int, int], worst: int, tmp_path: Path
) -> None:
    assert f"Error {worst}" in demo(tmp_path, *statuses).stderr


def test_demo_makes_both_runs_and_fails_with_the_worst_status(tmp_path: Path) -> None:
    done = demo(tmp_path, 3, 0)
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert ran == ["ran examples/prototype.yaml", "ran examples/moving-light.yaml"]
    assert done.returncode == 2
    assert "out/prototype.html says why the run is invalid" in done.stderr
    assert "Error 3" in done.stderr
