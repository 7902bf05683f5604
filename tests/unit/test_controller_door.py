"""The door of the controllers: what a person who opens it wrongly is told."""

import subprocess
import sys
from pathlib import Path

import pytest


def controller(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "controller", *words], capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_folder_without_a_fabric_is_named_and_nothing_else_reaches_the_terminal(tmp_path: Path) -> None:
    """Eventlet and distutils announce their ends to whoever imports them; a user has nothing to do with either."""
    assert controller("--run-dir", str(tmp_path), "--eps") == (
        1,
        "",
        f"{tmp_path}: no fabric is wired there\n",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([], "one of the arguments --run-dir --watch is required", id="nothing"),
        pytest.param(
            ["--run-dir", "/x", "--watch", "/x"], "not allowed with argument --run-dir", id="both-places"
        ),
        pytest.param(
            ["--run-dir", "/x", "--eps", "--region", "r0"], "not allowed with argument --eps", id="both-parts"
        ),
    ],
)
def test_faulty_words_are_told_before_anything_is_loaded(words: list[str], said: str) -> None:
    status, out, err = controller(*words)
    assert (status, out) == (2, "")
    assert said in err
