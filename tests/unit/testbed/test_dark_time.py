"""Dark time from numbered frames: its edges, its uncertainty, and frames lost outside of it."""

import pytest

from moefabric.testbed.dark_time import (
    Calibration,
    DarkInterval,
    calibration_table,
    measure_dark_interval,
)

SPACING_NS = 50_000


def stream(frames: int = 100, paused_before: int | None = None, pause_ns: int = 0) -> list[int]:
    """Return the send times of a steady stream that pauses before one of its frames."""
    late = [
        pause_ns if paused_before is not None and i >= paused_before else 0 for i in range(frames)
    ]
    return [1_000_000_000 + i * SPACING_NS + late[i] for i in range(frames)]


def through(frames: int, *lost: range) -> list[int]:
    lost_numbers = {number for numbers in lost for number in numbers}
    return [number for number in range(frames) if number not in lost_numbers]


def test_dark_interval_lies_between_frames_received_and_frames_lost() -> None:
    interval = measure_dark_interval(stream(), through(100, range(40, 60)))
    assert (interval.lost, interval.lost_outside) == (20, 0)
    assert interval.seconds == pytest.approx(20 * 50e-6)
    assert interval.within_s == pytest.approx(50e-6)
    assert interval.is_certain(50e-6)


def test_pause_at_an_edge_makes_the_interval_uncertain() -> None:
    interval = measure_dark_interval(
        stream(paused_before=60, pause_ns=400_000), through(100, range(40, 60))
    )
    assert not interval.is_certain(50e-6)
    assert interval.within_s == pytest.approx(250e-6)


def test_pause_inside_the_interval_leaves_it_certain() -> None:
    interval = measure_dark_interval(
        stream(paused_before=50, pause_ns=400_000), through(100, range(40, 60))
    )
    assert interval.is_certain(50e-6)
    assert interval.seconds == pytest.approx(20 * 50e-6 + 400e-6)


def test_frames_lost_outside_the_interval_are_counted() -> None:
    interval = measure_dark_interval(
        stream(), through(100, range(40, 60), range(70, 72), range(5, 6))
    )
    assert (interval.lost, interval.lost_outside) == (20, 3)


def test_stream_without_loss_has_no_dark_interval() -> None:
    assert measure_dark_interval(stream(), through(100)) == DarkInterval(0.0, 50e-6, 0, 0)


def test_interval_without_frames_is_uncertain() -> None:
    assert not measure_dark_interval(
        stream(paused_before=50, pause_ns=2_000_000), through(100)
    ).is_certain(50e-6)


@pytest.mark.parametrize(
    "lost", [range(20), range(80, 100), range(100)], ids=["begins", "ends", "is-all"]
)
def test_stream_that_starts_or_ends_dark_is_uncertain(lost: range) -> None:
    assert not measure_dark_interval(stream(), through(100, lost)).is_certain(50e-6)


def moves(*milliseconds: float, within_s: float = 50e-6) -> tuple[DarkInterval, ...]:
    return tuple(DarkInterval(ms / 1e3, within_s, 20, 0) for ms in milliseconds)


def test_calibration_has_quantiles_of_its_certain_moves() -> None:
    calibration = Calibration(
        "ocs0", 0.025, 50e-6, moves(25.1, 24.8, 25.0) + moves(31.0, within_s=3e-3)
    )
    document = calibration.to_json()
    assert (document["moves"], document["uncertain"]) == (4, 1)
    assert document["dark_p50_s"] == pytest.approx(0.025)
    assert document["error_p50_s"] == pytest.approx(0.1e-3)
    assert document["error_p99_s"] == pytest.approx(0.198e-3)
    assert calibration_table([calibration]).splitlines()[1].split() == [
        "ocs0", "25.000", "25.000", "25.098", "0.100", "0.198", "3",
        *["1", "more", "while", "the", "stream", "was", "held", "up"],
    ]  # fmt: skip


def test_calibration_without_certain_moves_has_no_quantiles() -> None:
    calibration = Calibration("ocs0", 0.025, 50e-6, moves(25.1, within_s=3e-3))
    assert "dark_p50_s" not in calibration.to_json()
    assert "the machine was too busy" in calibration_table([calibration])
