"""Progress away from a terminal is plain lines on standard error, and steps are not shown one by one."""

import pytest

from moefabric.console import reporter


def test_away_from_a_terminal_lines_stay_and_steps_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with reporter(total=2) as said:
        said.say("eps: bringing it up")
        said.step("forward dispatch of layer 0")
        said.say("eps: 0.2 s an iteration")
    captured = capsys.readouterr()
    assert captured.err == "eps: bringing it up\neps: 0.2 s an iteration\n"
    assert captured.out == ""
