"""Quantities are parsed as people write them, and other text is refused."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.units import (
    QueueLimit,
    Scale,
    duration_ns,
    duration_text,
    queue_limit,
    rate_bps,
    rate_text,
)


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        pytest.param("100Gb/s", 100e9, id="gigabits"),
        pytest.param("50Mbit", 50e6, id="tc-style"),
        pytest.param("50 Mbit/s", 50e6, id="space-and-per-second"),
        pytest.param("1.5tbps", 1.5e12, id="lower-case-prefix"),
        pytest.param("2e2kb/s", 200e3, id="exponent"),
        pytest.param("0", 0, id="nothing-needs-no-unit"),
        pytest.param(9600, 9600, id="bare-number-is-bits-per-second"),
        pytest.param("-5Gb/s", -5e9, id="negative-is-the-callers-affair"),
    ],
)
def test_rate_is_parsed_to_bits_per_second(text: str | float, bps: float) -> None:
    assert rate_bps(text) == pytest.approx(bps)


@pytest.mark.parametrize(
    "text",
    ["", "fast", "Gb/s", "12.5GB/s", "100Gb/h", "1 2Gb/s", "0x10", "\u0661Gb/s", "1e999Gb/s"],
)
def test_rate_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity such as 100Gb/s"):
        rate_bps(text)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        pytest.param("25ms", 25_000_000, id="milliseconds"),
        pytest.param("10us", 10_000, id="microseconds"),
        pytest.param("10µs", 10_000, id="micro-sign"),
        pytest.param("10μs", 10_000, id="greek-mu"),
        pytest.param("5.67s", 5_670_000_000, id="seconds"),
        pytest.param("2min", 120_000_000_000, id="minutes"),
        pytest.param("0", 0, id="nothing-needs-no-unit"),
        pytest.param(2, 2_000_000_000, id="bare-number-is-seconds"),
    ],
)
def test_duration_is_parsed_to_nanoseconds(text: str | float, ns: int) -> None:
    assert duration_ns(text) == ns


@pytest.mark.parametrize("text", ["soon", "25MS", "25Ms", "1h", "ms"])
def test_duration_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity such as 25ms"):
        duration_ns(text)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        pytest.param(rate_bps, "400", "400: a rate needs a unit: 400Gb/s", id="gigabits"),
        pytest.param(rate_bps, "1e11", "1e+11: a rate needs a unit: 100Gb/s", id="bits"),
        pytest.param(duration_ns, "10", "10: a time needs a unit: 10ms or 10s", id="either"),
        pytest.param(duration_ns, "0.025", "0.025: a time needs a unit: 25ms", id="seconds"),
    ],
)
def test_text_without_unit_is_refused_with_the_remedy(
    parse: Callable[[str], float], text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse(text)


@pytest.mark.parametrize(
    ("bps", "text"),
    [(100e9, "100Gb/s"), (2.5e12, "2.5Tb/s"), (200e6, "200Mb/s"), (1500, "1.5kb/s"), (7, "7b/s")],
)
def test_rate_text_is_short(bps: float, text: str) -> None:
    assert rate_text(bps) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(25_000_000, "25ms"), (5_670_000_000, "5.67s"), (10_000, "10us"), (7, "7ns"), (0, "0ns")],
)
def test_duration_text_is_short(ns: int, text: str) -> None:
    assert duration_text(ns) == text


@given(st.floats(1, 1e14))
def test_rate_text_parses_back_to_four_digits(bps: float) -> None:
    assert rate_bps(rate_text(bps)) == pytest.approx(bps, rel=1e-3)


@given(st.integers(0, 10**13))
def test_duration_text_parses_back_to_four_digits(ns: int) -> None:
    assert duration_ns(duration_text(ns)) == pytest.approx(ns, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("100 packets", QueueLimit(100)),
        ("1 packet", QueueLimit(1)),
        ("400 kB", QueueLimit(400_000, in_bytes=True)),
        ("1.5MB", QueueLimit(1_500_000, in_bytes=True)),
        ("9000 bytes", QueueLimit(9000, in_bytes=True)),
    ],
)
def test_queue_is_parsed_to_packets_or_bytes(text: str, limit: QueueLimit) -> None:
    assert queue_limit(text) == limit
    assert queue_limit(str(limit)) == limit


@pytest.mark.parametrize("text", ["100", "", "400 kb", "all packets", "100 frames"])
def test_queue_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity such as 100 packets or 400 kB"):
        queue_limit(text)


@pytest.mark.parametrize("text", ["0 packets", "-3 packets", "0.2 bytes"])
def test_queue_without_room_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has no room for a packet"):
        queue_limit(text)


@pytest.mark.parametrize(("size", "dilation"), [(0, 1), (1, 0), (-1, 1), (1, float("nan"))])
def test_scale_refuses_factors_that_are_not_positive(size: float, dilation: float) -> None:
    with pytest.raises(ValueError, match="a scale of"):
        Scale(size, dilation)
