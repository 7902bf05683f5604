"""Warnings that anybody can cause: a few at once, then a line a second with a count."""

import logging

import pytest

from moefabric.runtime.counted_warnings import BURST, CountedWarnings

LINE = "198.18.0.1: refused"


def test_flood_of_warnings_is_a_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    warnings = CountedWarnings(logging.getLogger("flood"), lambda: now_s[0])
    for number in range(3072):
        now_s[0] = number / 1024
        warnings.warn("%s: refused", "198.18.0.1")
    first, later = caplog.messages[:BURST], caplog.messages[BURST:]
    assert set(first) == {LINE}
    assert len(later) == 2
    assert later[1] == f"{LINE} (and 1023 more like it)"


def test_rare_warnings_are_all_logged(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    warnings = CountedWarnings(logging.getLogger("rare"), lambda: now_s[0])
    for number in range(100):
        now_s[0] = 2.0 * number
        warnings.warn("%s: refused", "198.18.0.1")
    assert caplog.messages == [LINE] * 100
