"""Fabrics that seem to run, for commands that only look for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.run_folders import running


@pytest.fixture
def two_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of the run directories of the fabrics `lab` and `other`."""
    with running(tmp_path / "run", monkeypatch, ["lab", "other"]):
        yield tmp_path / "run"
