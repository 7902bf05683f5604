"""Formatting of figures."""

import pytest

from moefabric.report import formatting


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(1.8423, "1.84 s", id="seconds"),
        pytest.param(0.02123, "21.2 ms", id="milliseconds"),
        pytest.param(0.00031, "310 µs", id="microseconds"),
        pytest.param(2.4e-8, "0.0240 µs", id="less-than-a-microsecond"),
        pytest.param(1842.3, "1,842 s", id="long"),
        pytest.param(0.99996, "1.00 s", id="almost-a-second"),
        pytest.param(0.009996, "10.0 ms", id="almost-ten-milliseconds"),
        pytest.param(0.0, "0 s", id="zero"),
        pytest.param(None, "\N{EN DASH}", id="missing"),
    ],
)
def test_seconds_chooses_the_unit(value: float | None, expected: str) -> None:
    assert formatting.seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(265e6, "265 MB", id="megabytes"),
        pytest.param(1.344e11, "134 GB", id="gigabytes"),
        pytest.param(512.0, "512 B", id="bytes"),
        pytest.param(999.6e6, "1.00 GB", id="almost-a-gigabyte"),
        pytest.param(0.0, "0 B", id="no-bytes"),
        pytest.param(None, "\N{EN DASH}", id="missing"),
    ],
)
def test_data_size_uses_decimal_prefixes(value: float | None, expected: str) -> None:
    assert formatting.data_size(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(0.025, "25.0", id="settle"),
        pytest.param(0.00071, "0.71", id="verify"),
        pytest.param(0.0, "0", id="none"),
        pytest.param(None, "\N{EN DASH}", id="missing"),
    ],
)
def test_milliseconds_has_no_unit(value: float | None, expected: str) -> None:
    assert formatting.milliseconds(value) == expected


def test_four_figures_of_almost_a_second_are_one_second() -> None:
    assert formatting.seconds(0.99996, 4) == "1.000 s"
    assert formatting.seconds(0.99994, 4) == "999.9 ms"


def test_percentage_deviation_and_ratio_have_their_signs() -> None:
    assert formatting.percentage(0.2241) == "22.4 %"
    assert formatting.deviation(-0.011) == "-1.1 %"
    assert formatting.deviation(0.011) == "+1.1 %"
    assert formatting.deviation(-0.0004) == "+0.0 %"
    assert formatting.ratio(1.414) == "1.41x"


def test_printable_removes_control_characters() -> None:
    assert formatting.printable("a\x1b[31m\nb\u202e") == "a [31m b"


def test_wrapped_text_fits_beside_its_head_and_keeps_words_whole() -> None:
    text = formatting.wrapped("one two three four", 5, 14)
    assert ("head " + text).splitlines() == ["head one two", "     three", "     four"]
    path = "/a/path/that/is/longer/than/the/line"
    assert formatting.wrapped(f"see {path}", 0, 10) == f"see\n{path}"
