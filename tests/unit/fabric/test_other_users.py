"""Fabrics of another user: what asks them says that sudo is needed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moefabric.core.errors import UnsupportedError
from moefabric.emulator.fabric import run_directories
from moefabric.emulator.ocs import client
from moefabric.runtime.run_directory import RunDirectory

_NOBODY = 65534


@pytest.fixture
def run_dir() -> Iterator[RunDirectory]:
    """Yield a run directory whose parent all users may read, and which nobody may."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        made = RunDirectory(Path(root) / "lab")
        made.path.mkdir()
        made.path.chmod(0)
        yield made
        made.path.chmod(0o700)


@contextmanager
def other_user() -> Iterator[None]:
    """Let root, who may read everything, be somebody else."""
    if os.geteuid():
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_fabric_of_another_user_needs_sudo(run_dir: RunDirectory) -> None:
    refusal = pytest.raises(UnsupportedError, match=r"^lab: a fabric of \w[\w ]*'s; run with")
    with refusal, other_user(), run_directories.lock(run_dir):
        pass
    with refusal, other_user():
        run_directories.check_access(run_dir)
    with refusal, other_user():
        client.request(run_dir.path / "ocs0.handoff", {"do": "show"})
