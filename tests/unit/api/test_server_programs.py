"""Programs on servers: the interpreter of ranks."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moefabric.api.server_programs import ServerPrograms
from moefabric.execution.programs.rank_jobs import RankPlace

WAIT_S = 30.0


@pytest.mark.parametrize("name", ["python", "python3"])
def test_python_of_text_is_the_running_one_and_words_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    other = tmp_path / name
    other.write_text("#!/bin/sh\necho other\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    place = RankPlace(lambda _server, command: command, ("s0",), "127.0.0.1")
    monkeypatch.setattr(RankPlace, "on_fabric", lambda *_, **__: place)
    lab: Any = SimpleNamespace(servers=["s0"], wiring=None, name="lab")
    printed = list[str]()
    for command in (f"{name} -c 'import sys; print(sys.executable)'", [name]):
        with ServerPrograms.launch(
            lab, command, on_line=lambda _rank, _stream, line: printed.append(line)
        ) as ranks:
            assert ranks.wait(WAIT_S)
    assert printed == [sys.executable, "other"]
