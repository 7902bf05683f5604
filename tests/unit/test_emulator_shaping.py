"""Shaping: which rates a link can have, and how tc's answers are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.shaping import burst_bytes, refusal, shown_rates_bps


@pytest.mark.parametrize(
    ("rate_bps", "said"),
    [
        pytest.param(
            99_999,
            "99999 b/s is too slow to shape (100 kb/s at least); scale the bytes down by less",
            id="too-slow",
        ),
        pytest.param(
            float("nan"),
            "nan b/s is too slow to shape (100 kb/s at least); scale the bytes down by less",
            id="no-rate",
        ),
        pytest.param(100_000, None, id="the-slowest"),
        pytest.param(50e6, None, id="100-gb-at-1-to-2000"),
        pytest.param(10e9, None, id="the-fastest"),
        pytest.param(
            20e9,
            "20 Gb/s is more than this machine can shape (10 Gb/s a link); scale the bytes down by more",
            id="too-fast",
        ),
    ],
)
def test_a_rate_that_cannot_be_shaped_is_refused_with_the_remedy(rate_bps: float, said: str | None) -> None:
    assert refusal(rate_bps) == said


@pytest.mark.parametrize(
    ("rate_bps", "mtu", "burst"),
    [
        pytest.param(1e6, 1500, 3028, id="two-frames-at-least"),
        pytest.param(50e6, 1500, 12_500, id="2-ms-of-the-rate"),
        pytest.param(50e6, 9000, 18_028, id="two-large-frames"),
        pytest.param(1e9, 1500, 250_000, id="2-ms-of-a-gigabit"),
    ],
)
def test_a_burst_makes_up_for_a_late_timer_and_no_more(rate_bps: float, mtu: int, burst: int) -> None:
    assert burst_bytes(rate_bps, mtu) == burst


@given(st.floats(100e3, 10e9), st.sampled_from([1500, 9000]))
def test_an_idle_link_saves_up_at_most_a_hundredth_of_a_second_of_its_rate_or_two_frames(
    rate_bps: float, mtu: int
) -> None:
    assert burst_bytes(rate_bps, mtu) <= max(rate_bps / 8 / 100, 2 * (mtu + 14))


def test_the_rates_that_tc_tells_are_read_in_its_units() -> None:
    shown = (
        "class htb 1:1 root leaf 10: prio 0 rate 50Mbit ceil 50Mbit burst 12500b cburst 12500b \n"
        "class htb 1:1 root leaf 10: prio 0 rate 1234Kbit ceil 1234Kbit burst 3028b cburst 3028b \n"
        "class htb 1:2 root prio 0 rate 7Gbit ceil 7Gbit burst 1b cburst 1b \n"
        "class htb 1:1 root prio 0 rate 999bit ceil 999bit burst 1b cburst 1b \n"
    )
    assert shown_rates_bps(shown) == [50e6, 1.234e6, 999]
