"""A few random faults: `make chaos` has hundreds."""

import re
import subprocess
import sys

import pytest

from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.ovs, pytest.mark.nightly, pytest.mark.timeout(600)]


def chaos(*options: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "tests.chaos", "--seed", "1", *options]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_random_faults_leave_nothing_and_nothing_hangs() -> None:
    done = chaos("--faults", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    # Faults are those of the seed, but hit other processes each time: fabrics may refuse all work.
    assert re.search("ping (done|refused) after faults", done.stdout), done.stdout


def test_too_few_faults_in_the_time_are_a_failure() -> None:
    done = chaos("--faults", "500", "--seconds", "1")
    assert done.returncode == 1
    assert "of 500 faults in 1 s" in done.stderr


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        ("planted loss", "datagrams from s2 to s3 lost after a planted loss"),
        ("planted end", "doesn't outlast a planted end"),
    ],
)
def test_judges_complain_of_what_is_planted(planted: str, complaint: str) -> None:
    done = chaos("--faults", "7", "--kind", planted)
    assert done.returncode == 1, done.stdout
    assert complaint in done.stderr
