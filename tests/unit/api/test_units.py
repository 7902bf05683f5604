"""Units of a long command: they survive its end at any instant, and go on where it was stopped."""

import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest

from moefabric.api.units import Units, file_digests, finished_units, units_file
from moefabric.core.errors import SpecError

KILLED = """
import os, signal, sys
from pathlib import Path
from moefabric.api.units import finished_units
with finished_units(Path(sys.argv[1]), {"files": "a"}, resume=False) as units:
    for number in range(3):
        units.result(f"unit {number}", lambda: [number, 0.1])
    os.kill(os.getpid(), signal.SIGKILL)
"""
SAME = {"files": "a"}


def killed(folder: Path) -> Path:
    """Return the JSON of a command that was killed after three units."""
    json_file = folder / "out.json"
    done = subprocess.run([sys.executable, "-c", KILLED, str(json_file)], check=False)
    assert done.returncode == -signal.SIGKILL
    return json_file


def refuse() -> Any:
    raise AssertionError("this unit has ended before")


def test_units_of_a_killed_command_are_not_computed_again(tmp_path: Path) -> None:
    json_file = killed(tmp_path)
    with finished_units(json_file, SAME, resume=True) as units:
        assert [units.result(f"unit {n}", refuse) for n in range(3)] == [
            [0, 0.1], [1, 0.1], [2, 0.1],
        ]  # fmt: skip
        assert units.result("unit 3", lambda: "new") == "new"
    assert list(tmp_path.iterdir()) == [], "the file ends with the command"


def test_last_line_may_be_cut_and_an_error_keeps_the_file(tmp_path: Path) -> None:
    json_file = killed(tmp_path)
    file = units_file(json_file)
    assert file is not None
    file.write_bytes(file.read_bytes()[:-4])
    with suppress(KeyboardInterrupt), finished_units(json_file, SAME, resume=True) as units:
        assert list(units.results) == ["unit 0", "unit 1"]
        units.result("unit 2", lambda: 5)
        raise KeyboardInterrupt
    with finished_units(json_file, SAME, resume=True) as units:
        assert list(units.results) == ["unit 0", "unit 1", "unit 2"]


def test_units_of_another_run_are_refused(tmp_path: Path) -> None:
    json_file = killed(tmp_path)
    for head, message in (
        ({"files": "b"}, r"is of another run \(files differ\)"),
        ({"files": "a", "cores": 2}, r"\(cores differ\)"),
    ):
        with pytest.raises(SpecError, match=message), finished_units(json_file, head, resume=True):
            pass
    with (
        pytest.raises(SpecError, match="there is no run to resume"),
        finished_units(tmp_path / "other.json", SAME, resume=True),
    ):
        pass
    with (
        pytest.raises(SpecError, match="give the --json file"),
        finished_units(None, SAME, resume=True),
    ):
        pass
    with finished_units(json_file, SAME, resume=False) as units:
        assert units.results == {}


def test_a_command_without_a_file_keeps_nothing(tmp_path: Path) -> None:
    with finished_units(Path("-"), SAME, resume=False) as units:
        assert units.result("unit", lambda: 1) == 1
    assert Units().result("unit", lambda: 2) == 2
    (tmp_path / "a").write_text("x")
    assert file_digests(tmp_path.iterdir())[str(tmp_path / "a")].startswith("2d711642")


@dataclass(frozen=True)
class Counts:
    name: str
    by_class: dict[int, tuple[float, ...]]


def test_result_of_a_type_comes_back_as_it_was(tmp_path: Path) -> None:
    json_file, found = tmp_path / "out.json", [Counts("a", {7: (0.1, nan)}), Counts("b", {})]
    with suppress(KeyboardInterrupt), finished_units(json_file, SAME, resume=False) as units:
        assert units.value("counts", list[Counts], lambda: found)[1] == found[1]
        raise KeyboardInterrupt
    with finished_units(json_file, SAME, resume=True) as units:
        first, second = units.value("counts", list[Counts], refuse)
    assert (first.name, second) == ("a", found[1])
    assert (first.by_class[7][0], isnan(first.by_class[7][1])) == (0.1, True)


def test_journal_of_a_unit_stays_for_the_run_that_goes_on(tmp_path: Path) -> None:
    json_file, path = tmp_path / "out.json", tmp_path / "out.json.units.run.jsonl"
    for resume, text, has_begun in ((False, "begun\n", False), (True, "cut", True)):
        with suppress(KeyboardInterrupt), finished_units(json_file, SAME, resume=resume) as units:
            assert units.journal("run") == (path, has_begun)
            path.write_text(text)
            raise KeyboardInterrupt
    with finished_units(json_file, SAME, resume=True) as units:
        assert units.journal("run") == (path, False), "its first line was cut off"
    assert list(tmp_path.iterdir()) == []
    path.write_text("of an earlier command\n")
    with finished_units(json_file, SAME, resume=False) as units:
        assert units.journal("run") == (path, False)
    assert Units().journal("run") == (None, False)
