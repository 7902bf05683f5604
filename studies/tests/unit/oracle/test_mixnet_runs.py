"""Runs of MixNet's packet simulator by programs that answer at once, and the model's side."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest
from moefabric_studies.oracle.mixnet.cases import JudgedCase, Network, judged_cases, rotated_cases
from moefabric_studies.oracle.mixnet.model import answer
from moefabric_studies.oracle.mixnet.runs import run, run_all
from moefabric_studies.oracle.processes import SimulatorError

CASE: Final = JudgedCase("even, 8 servers", 1.0, 100e9, Network.MIXNET, 6)
LOG: Final = """#!/bin/sh
echo "$@" >> "$0.log"
cat "$2" >> "$0.log"
"""


def test_model_of_even_bytes_on_one_switch_is_that_of_the_busiest_nic() -> None:
    case = JudgedCase("even", 1.0, 100e9, Network.ONE_SWITCH)
    matrix = np.full((4, 4), 8e9) - np.diag(np.full(4, 8e9))
    own = answer(case, matrix, np.zeros((4, 4), dtype=np.int64))
    assert own.null_s == pytest.approx(3 * 8 * 8e9 / 8 / 100e9)
    assert own.seconds == pytest.approx(own.null_s, rel=1e-4)


def _program(folder: Path, *lines: str) -> Path:
    program = folder / "program"
    program.write_text(
        '#!/bin/sh\necho "$@" >> "$0.log"\ncat "$2" >> "$0.log"\n' + "\n".join(lines)
    )
    program.chmod(0o755)
    return program


def _log(folder: Path) -> list[str]:
    return (folder / "program.log").read_text().splitlines()


def test_program_is_given_whole_bytes_and_its_circuits_and_ends_are_read(tmp_path: Path) -> None:
    program = _program(
        tmp_path,
        "echo CIRCUITS 0 1 2",
        "echo CIRCUITS 1 0 2",
        "echo LAST ${5}000000",
        "echo UNFINISHED 0",
    )
    result = run(program, CASE, np.array([[0.0, 7.0], [5.0, 0.0]]))
    assert result.ends_s == {13: 13e-6, 14: 14e-6, 15: 15e-6}
    assert result.last_s == pytest.approx(14e-6)
    assert result.counts(2).tolist() == [[0, 2], [2, 0]]
    given = _log(tmp_path)
    assert given[0].split()[0] == "mixnet"
    assert given[0].split()[2:] == ["100000", "6", "13"]
    assert given[1:4] == ["2", "0 7", "5 0"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("echo LAST 5", "echo UNFINISHED 3"), "3 flows did not end"),
        (("echo LAST 5",), "unknown flows did not end"),
        (("echo no such network >&2", "exit 2"), "no such network"),
    ],
)
def test_program_that_fails_gives_no_result(
    tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SimulatorError, match=message):
        run(_program(tmp_path, *lines), CASE, np.zeros((2, 2)))


def test_all_cases_are_run(tmp_path: Path) -> None:
    program = _program(tmp_path, "echo LAST 5", "echo UNFINISHED 0")
    small = {"small": np.array([[0.0, 64.0], [64.0, 0.0]])}
    results = run_all(program, small, {"simulator": "none"})
    assert [r.case for r in results.results] == [*judged_cases(small), *rotated_cases(small)]
    networks = [line.split()[0] for line in _log(tmp_path) if len(line.split()) == 5]
    assert networks.count("one-switch-rotated") == 3
    one_switch = [r for r in results.results if r.case.network is Network.ONE_SWITCH]
    assert {tuple(r.ends_s) for r in one_switch} == {(13,)}
