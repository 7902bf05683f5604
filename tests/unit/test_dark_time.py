"""Dark time from numbered frames: where the dark begins and ends, how sure that is, and what is lost besides."""

import pytest

from moefabric.dark_time import Calibration, Dark, dark, table

SPACING_NS = 50_000


def stream(frames: int = 100, paused_before: int | None = None, pause_ns: int = 0) -> list[int]:
    """When each frame of a steady stream was sent; one that was held up before one of its frames."""
    late = [pause_ns if paused_before is not None and i >= paused_before else 0 for i in range(frames)]
    return [1_000_000_000 + i * SPACING_NS + late[i] for i in range(frames)]


def through(frames: int, *lost: range) -> list[int]:
    gone = {number for each in lost for number in each}
    return [number for number in range(frames) if number not in gone]


def test_the_dark_is_between_the_frames_around_it_and_those_in_it() -> None:
    seen = dark(stream(), through(100, range(40, 60)))
    assert (seen.lost, seen.lost_besides) == (20, 0)
    assert seen.seconds == pytest.approx(20 * 50e-6)
    assert seen.within_s == pytest.approx(50e-6)
    assert seen.certain(50e-6)


def test_a_stream_that_was_held_up_at_an_edge_can_not_tell() -> None:
    seen = dark(stream(paused_before=60, pause_ns=400_000), through(100, range(40, 60)))
    assert not seen.certain(50e-6)
    assert seen.within_s == pytest.approx(250e-6)


def test_one_that_was_held_up_in_the_dark_can() -> None:
    seen = dark(stream(paused_before=50, pause_ns=400_000), through(100, range(40, 60)))
    assert seen.certain(50e-6)
    assert seen.seconds == pytest.approx(20 * 50e-6 + 400e-6)


def test_what_is_lost_besides_is_counted() -> None:
    seen = dark(stream(), through(100, range(40, 60), range(70, 72), range(5, 6)))
    assert (seen.lost, seen.lost_besides) == (20, 3)


def test_no_dark_is_none() -> None:
    assert dark(stream(), through(100)) == Dark(0.0, 50e-6, 0, 0)


def test_a_dark_during_which_nothing_was_sent_is_not_known() -> None:
    assert not dark(stream(paused_before=50, pause_ns=2_000_000), through(100)).certain(50e-6)


@pytest.mark.parametrize("lost", [range(20), range(80, 100), range(100)], ids=["begins", "ends", "is-all"])
def test_a_stream_in_the_dark_at_an_end_can_not_tell(lost: range) -> None:
    assert not dark(stream(), through(100, lost)).certain(50e-6)


def moves(*milliseconds: float, within_s: float = 50e-6) -> tuple[Dark, ...]:
    return tuple(Dark(ms / 1e3, within_s, 20, 0) for ms in milliseconds)


def test_a_calibration_tells_dark_and_error_and_leaves_out_what_it_can_not_tell() -> None:
    made = Calibration("ocs0", 0.025, 50e-6, moves(25.1, 24.8, 25.0) + moves(31.0, within_s=3e-3))
    said = made.to_json()
    assert (said["moves"], said["uncertain"]) == (4, 1)
    assert said["dark_p50_s"] == pytest.approx(0.025)
    assert said["error_p50_s"] == pytest.approx(0.1e-3)
    assert said["error_p99_s"] == pytest.approx(0.198e-3)
    assert table([made]).splitlines()[1].split() == [
        "ocs0", "25.000", "25.000", "25.098", "0.100", "0.198", "3", *["1", "more", "while", "the", "stream", "was", "held", "up"]
    ]  # fmt: skip


def test_a_calibration_on_a_machine_that_is_too_busy_has_no_figures() -> None:
    made = Calibration("ocs0", 0.025, 50e-6, moves(25.1, within_s=3e-3))
    assert "dark_p50_s" not in made.to_json()
    assert "the machine was too busy" in table([made])
