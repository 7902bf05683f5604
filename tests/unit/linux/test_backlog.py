"""The limit of frames that wait for a core."""

from pathlib import Path

import pytest

from moefabric.emulator.linux import backlog


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "netdev_max_backlog"
    path.write_text("1000\n")
    monkeypatch.setattr(backlog, "_LIMIT", path)
    return path


def test_limit_is_raised_for_many_nics_and_never_lowered(limit: Path) -> None:
    backlog.enlarge_backlog(15)
    assert backlog.backlog_limit() == 1000
    backlog.enlarge_backlog(1024)
    assert backlog.backlog_limit() == 65536
    assert backlog.nics_within(65536) == 1024
    backlog.enlarge_backlog(16)
    assert limit.read_text() == "65536"


def test_machine_that_hides_its_limit_keeps_it(limit: Path) -> None:
    limit.unlink()
    backlog.enlarge_backlog(1024)
    assert backlog.backlog_limit() is None
    assert not limit.exists()
