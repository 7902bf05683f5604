"""Warnings that anybody can cause: one line a second, with the number of the others."""

import logging

import pytest

from moefabric.runtime.counted_warnings import CountedWarnings


def test_flood_of_warnings_is_a_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    warnings = CountedWarnings(logging.getLogger("flood"), lambda: now_s[0])
    for number in range(3000):
        now_s[0] = number / 1000
        warnings.warn("%s: refused", "198.18.0.1")
    line = "198.18.0.1: refused"
    assert caplog.messages == [line, *[f"{line} (and 999 more since)"] * 2]
