"""Sessions of `make test`: what runs side by side, and what is repeated."""

from pathlib import Path

import pytest

from tests.__main__ import MOST_RERUNS, Session, Tier

PASSES_AT_SECOND_ATTEMPT = """
import pathlib
import pytest

@pytest.mark.parametrize("case", range({cases}))
def test_it(case, request):
    flag = pathlib.Path(__file__).with_name(f"ran-{{case}}")
    ran = flag.exists()
    flag.touch()
    assert ran
"""
MEETS = """
import pathlib, time
pathlib.Path("{mine}").touch()
while not pathlib.Path("{other}").exists():
    time.sleep(0.01)
pathlib.Path("{mine}-ended").touch()
"""


def session_of(folder: Path, text: str) -> Session:
    """Return a session of one file of tests."""
    (folder / "test_it.py").write_text(text)
    return Session({"unit": Tier(["pytest", "test_it.py"], "unit")}, folder / "out", root=folder)


def test_few_failed_tests_are_repeated_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = PASSES_AT_SECOND_ATTEMPT.format(cases=MOST_RERUNS)
    assert session_of(tmp_path, text).run()
    ledger = (tmp_path / "out" / "reruns.txt").read_text().splitlines()
    assert [line.split("::")[1] for line in ledger] == ["test_it[0]", "test_it[1]", "test_it[2]"]
    output = capfd.readouterr().out
    assert "repeated in 1 runs now: " in output
    assert "assert False" in output


def test_many_failed_tests_are_not_repeated(tmp_path: Path) -> None:
    text = PASSES_AT_SECOND_ATTEMPT.format(cases=MOST_RERUNS + 1)
    assert not session_of(tmp_path, text).run()
    assert not (tmp_path / "out" / "reruns.txt").exists()


def test_test_that_fails_twice_fails_the_session(tmp_path: Path) -> None:
    assert not session_of(tmp_path, "def test_it(): assert 0").run()
    assert len((tmp_path / "out" / "reruns.txt").read_text().splitlines()) == 1


def test_failed_check_is_not_repeated(tmp_path: Path) -> None:
    check = Tier(["python", "-c", f"open({str(tmp_path / 'ran')!r}, 'a').write('x'); 1 / 0"], "a")
    assert not Session({"check": check}, tmp_path / "out").run()
    assert (tmp_path / "ran").read_text() == "x"


def test_lanes_run_side_by_side_and_the_last_one_alone(tmp_path: Path) -> None:
    """Each of two lanes waits for the other's file; the last lane finds both ended."""
    a, b = tmp_path / "a", tmp_path / "b"
    both_ended = f"import os; assert os.path.exists('{a}-ended') and os.path.exists('{b}-ended')"
    tiers = {
        "last": Tier(["python", "-c", both_ended], "alone"),
        "first": Tier(["python", "-c", MEETS.format(mine=a, other=b)], "one"),
        "second": Tier(["python", "-c", MEETS.format(mine=b, other=a)], "two"),
    }
    assert Session(tiers, tmp_path / "out").run()
