"""Incast: bounds, shares and what the claims take from them."""

from typing import Any

import pytest
from moefabric_studies.systems.link.incast import Incast, IncastCell
from moefabric_studies.systems.link.study import Setup, collapse_measures

from moefabric.emulator.link.lateness import Lateness

INCAST = Incast(rate_bps=100e6, delay_ns=500_000, block_bytes=14_480, rounds=2)
BOUND_S = 0.0005 + 8 * 10 * 1514 / 100e6
"""One block is ten frames."""
SETUP: dict[str, Any] = {
    "rate": "100Mb/s",
    "delay": "500us",
    "block": "14480B",
    "senders": [1, 2],
    "queues": ["16kB", "64kB"],
    "rounds": 2,
    "least_timeout": "5ms",
}


def cell(senders: int, queue: int, share: float, timeout_ns: int | None = None) -> IncastCell:
    """Return a cell whose two rounds have this goodput together."""
    total_s = 2 * INCAST.bound_s(senders) / share
    seconds = total_s / 4, total_s * 3 / 4
    return IncastCell(INCAST, senders, queue, timeout_ns, seconds, 5, Lateness())


def test_bound_is_half_a_round_trip_and_all_frames() -> None:
    assert INCAST.bound_s(1) == pytest.approx(BOUND_S)
    assert INCAST.bound_s(3) - INCAST.bound_s(2) == pytest.approx(8 * 10 * 1514 / 100e6)


def test_share_rests_on_all_rounds_and_slowdown_on_the_slowest() -> None:
    half = cell(1, 16_000, 0.5)
    assert half.share == pytest.approx(0.5)
    assert half.slowdown == pytest.approx(3)
    lost = half.lost_share()
    assert lost.value == pytest.approx(50)
    assert lost.samples == pytest.approx((0, 100 * 2 / 3))


def test_names_tell_queues_and_timeouts_apart() -> None:
    names = [cell(1, 16_000, 1.0, timeout_ns).name for timeout_ns in (None, 5_000_000)]
    assert names == ["16kB", "16kB, timeout 5ms"]


def test_claims_take_the_worst_senders_and_the_same_with_a_short_timeout() -> None:
    cells = [cell(1, 16_000, 0.9), cell(2, 16_000, 0.1)]
    cells += [cell(1, 64_000, 0.95), cell(2, 64_000, 0.8)]
    cells += [cell(1, 16_000, 0.9, 5_000_000), cell(2, 16_000, 0.7, 5_000_000)]
    measures = collapse_measures(Setup.model_validate(SETUP), cells)
    assert measures["collapse"].value == pytest.approx(90)
    assert measures["collapse_short_timeout"].value == pytest.approx(30)
    assert measures["senders_until_half"].value == 2, "4 stands for none, over 2"
