"""Shaping: possible rates, bursts and queues, and differences of the kernel's limits from them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.units import QueueLimit
from moefabric.emulator.fabric.shaping import Shape, burst_bytes, rate_refusal
from moefabric.emulator.linux.queueing import HtbClass


@pytest.mark.parametrize(
    ("rate_bps", "refusal"),
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
            "20 Gb/s is more than this machine can shape (10 Gb/s a link); "
            "scale the bytes down by more",
            id="too-fast",
        ),
    ],
)
def test_unshapeable_rate_is_refused_with_remedy(rate_bps: float, refusal: str | None) -> None:
    assert rate_refusal(rate_bps) == refusal


@pytest.mark.parametrize(
    ("rate_bps", "burst"),
    [
        pytest.param(1e6, 62, id="less-than-a-frame"),
        pytest.param(50e6, 3_125, id="half-a-millisecond-of-the-rate"),
        pytest.param(1e9, 62_500, id="half-a-millisecond-of-a-gigabit"),
    ],
)
def test_burst_covers_timer_lateness_only(rate_bps: float, burst: int) -> None:
    assert burst_bytes(rate_bps) == burst


@given(st.floats(100e3, 10e9))
def test_burst_is_never_empty_nor_longer_than_half_a_millisecond(rate_bps: float) -> None:
    assert 1 <= burst_bytes(rate_bps) <= max(1, rate_bps / 8 * 500e-6)


@pytest.mark.parametrize(
    ("queue", "discipline"),
    [
        (None, ("pfifo", 100_000)),
        (QueueLimit(20), ("pfifo", 20)),
        (QueueLimit(400_000, in_bytes=True), ("bfifo", 400_000)),
    ],
)
def test_queue_drops_beyond_its_limit(
    queue: QueueLimit | None, discipline: tuple[str, int]
) -> None:
    assert Shape("s0/e0", "s0-e0", 50e6, queue).discipline == discipline


AS_SHAPED = HtbClass.made(50e6, burst_bytes(50e6))
QUEUE = ("pfifo", 20)


@pytest.mark.parametrize(
    ("limits", "queue", "deviations"),
    [
        pytest.param({}, QUEUE, [], id="as-shaped"),
        pytest.param(
            {"rate_bps": 45e6}, QUEUE, ["is shaped to 45000000 b/s, not 50000000"], id="rate"
        ),
        pytest.param(
            {"ceil_bps": 51.5e6}, QUEUE, ["may send 51500000 b/s (ceil), not 50000000"], id="ceil"
        ),
        *(
            pytest.param(
                {name: 4 * AS_SHAPED.burst_ticks},
                QUEUE,
                ["sends bursts 4 times as long as configured"],
                id=name,
            )
            for name in ("burst_ticks", "ceil_burst_ticks")
        ),
        pytest.param(
            {}, ("pfifo", 200), ["has pfifo limit 200, not pfifo limit 20"], id="longer-queue"
        ),
        pytest.param({}, None, ["has no queue, not pfifo limit 20"], id="no-queue"),
    ],
)
def test_limits_that_differ_from_the_shape_are_named(
    limits: dict[str, Any], queue: tuple[str, int] | None, deviations: list[str]
) -> None:
    shape = Shape("s0/e0", "s0-e0", 50e6, QueueLimit(20))
    assert list(shape.deviations(AS_SHAPED._replace(**limits), queue)) == deviations
