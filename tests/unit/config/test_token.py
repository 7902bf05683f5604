"""The fabric's token file."""

import os
from pathlib import Path

import pytest

from moefabric.core.errors import ControlError
from moefabric.runtime.run_directory import RunDirectory


def test_token_is_random_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    tokens = set()
    for name in ("a", "b"):
        run_dir = RunDirectory(tmp_path / name)
        run_dir.path.mkdir()
        run_dir.make_token()
        assert run_dir.token_file.stat().st_mode & 0o777 == 0o600
        tokens.add(run_dir.read_token())
    assert len(tokens) == 2
    assert all(len(token) == 64 for token in tokens)


def test_token_is_not_written_over_or_through_a_link(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path)
    run_dir.token_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        run_dir.make_token()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_token_belongs_to_the_user_of_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "12345")
    run_dir = RunDirectory(tmp_path)
    run_dir.make_token()
    assert run_dir.token_file.stat().st_uid == 12345


def test_missing_token_names_the_file_and_who_may_read_it(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"token: No such file.*root and the user who started"):
        RunDirectory(tmp_path).read_token()
