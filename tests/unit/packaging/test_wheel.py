"""The package as a wheel: built twice, it has the same bits."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.nightly
EPOCH = "1767225600"


def digests(folder: Path, changed_s: int) -> dict[str, str]:
    """Build the wheels from a copy whose files have changed at an instant; return their digests."""
    listed = ["git", "ls-files", "-z", "moefabric", "emulator", "controller", "agents", "studies"]
    listed += ["packaging", "pyproject.toml", "README.md", "LICENSE"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in filter(None, names.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, folder / name, follow_symlinks=False)
        os.utime(folder / name, (changed_s, changed_s), follow_symlinks=False)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "-w", "wheels", ".", "./studies"],
        cwd=folder, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH}, check=True,
    )  # fmt: skip
    wheels = sorted((folder / "wheels").iterdir())
    return {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}


def test_wheels_of_two_checkouts_are_equal(tmp_path: Path) -> None:
    first = digests(tmp_path / "first", 1_700_000_000)
    second = digests(tmp_path / "other/second", 1_760_000_000)
    assert len(first) == 2
    assert first == second
