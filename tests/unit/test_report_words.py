"""How figures are said."""

import pytest

from moefabric.report import words


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param(1.8423, "1.84 s", id="seconds"),
        pytest.param(0.02123, "21.2 ms", id="milliseconds"),
        pytest.param(0.00031, "310 µs", id="microseconds"),
        pytest.param(2.4e-8, "0.0240 µs", id="less-than-a-microsecond"),
        pytest.param(1842.3, "1,842 s", id="long"),
        pytest.param(0.0, "0 s", id="zero"),
        pytest.param(None, "\N{EN DASH}", id="missing"),
    ],
)
def test_a_time_is_said_in_the_unit_that_a_person_would_use(value: float | None, said: str) -> None:
    assert words.seconds(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param(265e6, "265 MB", id="megabytes"),
        pytest.param(1.344e11, "134 GB", id="gigabytes"),
        pytest.param(512.0, "512 B", id="bytes"),
        pytest.param(0.0, "0 B", id="none-sent"),
        pytest.param(None, "\N{EN DASH}", id="missing"),
    ],
)
def test_bytes_are_said_in_decimal_multiples(value: float | None, said: str) -> None:
    assert words.amount(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param(0.025, "25.0", id="settle"),
        pytest.param(0.00071, "0.71", id="verify"),
        pytest.param(0.0, "0", id="none"),
        pytest.param(None, "\N{EN DASH}", id="missing"),
    ],
)
def test_a_phase_is_said_in_milliseconds(value: float | None, said: str) -> None:
    assert words.milliseconds(value) == said


def test_shares_errors_and_ratios_carry_their_signs() -> None:
    assert words.share(0.2241) == "22.4 %"
    assert words.error(-0.011) == "-1.1 %"
    assert words.error(0.011) == "+1.1 %"
    assert words.error(-0.0004) == "+0.0 %"
    assert words.ratio(1.414) == "1.41x"


def test_text_of_a_run_cannot_steer_the_terminal() -> None:
    assert words.printable("a\x1b[31m\nb\u202e") == "a [31m b"
