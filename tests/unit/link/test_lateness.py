"""Percentiles of a relay's lateness."""

from moefabric.emulator.link.lateness import Lateness, LatenessHistogram


def test_percentiles_are_rounded_up_to_ten_microseconds() -> None:
    histogram = LatenessHistogram()
    for late_us in range(100):
        histogram.add(late_us * 1000)
    assert histogram.summary() == Lateness(100, 50_000, 99_000, 99_000)


def test_no_percentile_exceeds_the_maximum_and_early_frames_are_not_late() -> None:
    histogram = LatenessHistogram()
    histogram.add(-5)
    histogram.add(3_000)
    assert histogram.summary() == Lateness(2, 3_000, 3_000, 3_000)
    assert LatenessHistogram().summary() == Lateness()


def test_very_late_frames_keep_their_maximum() -> None:
    histogram = LatenessHistogram()
    histogram.add(2_000_000_000)
    assert histogram.summary().max_ns == 2_000_000_000
