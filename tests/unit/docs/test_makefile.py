"""Targets of the Makefile."""

import subprocess
from pathlib import Path

from tests.support.paths import REPOSITORY


def test_demo_makes_both_runs_and_fails_with_the_worst_status(tmp_path: Path) -> None:
    program = tmp_path / "moefabric"
    program.write_text('#!/bin/sh\necho ran "$2"\ncase $2 in *prototype*) exit 3;; esac\n')
    program.chmod(0o755)
    file = f"--file={REPOSITORY}/Makefile"
    words = ["make", file, "--old-file=setup-run", "demo", f"bin={tmp_path}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert ran == ["ran examples/prototype.yaml", "ran examples/moving-light.yaml"]
    assert done.returncode == 2
    assert "out/prototype.html says why the run is invalid" in done.stderr
    assert "Error 3" in done.stderr
