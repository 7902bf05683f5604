"""Ryu's own program in the environment of the project."""

import shutil
import subprocess

import pytest

from tests.support.paths import REPOSITORY

RYU = shutil.which("ryu-manager", path=str(REPOSITORY / ".venv/bin")) or ""


def need_ryu() -> None:
    """Skip the test if `ryu-manager` is absent, or fails with this environment's Eventlet."""
    if not RYU:
        pytest.skip("ryu-manager not found; packaging/setup test installs it")
    ended = subprocess.run([RYU, "--version"], capture_output=True, text=True, check=False)
    if ended.returncode:
        pytest.skip(f"packaging/setup test mends ryu-manager: {ended.stderr.splitlines()[-1]}")
