"""Frames of a transfer: a short one, full ones, and a short one at its end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.agents.engine import wire
from moefabric.agents.engine.outgoing import TAIL, frame_end

SEGMENT = 1448


def frame_ends(length: int, segment: int = SEGMENT) -> list[int]:
    """Return the ends of all frames, as bytes of the connection counted from the header."""
    ends, position = [0], 0
    while position < length:
        position = frame_end(position, length, segment)
        ends.append(wire.HEADER.size + position)
    ends[-1] = wire.framed_size(length)
    return ends


def test_first_and_last_frame_of_a_transfer_are_short() -> None:
    length = 1_000_000 - wire.HEADER.size - wire.TRAILER.size  # a multiple of 64: no padding
    segments = [round((end - begin) / SEGMENT, 1) for begin, end in pairwise(frame_ends(length))]
    assert segments == [1, 689, 0.6]


@pytest.mark.parametrize("length", [1, 100, SEGMENT, 2 * SEGMENT])
def test_short_transfer_leaves_in_single_segments(length: int) -> None:
    assert all(end - begin <= SEGMENT + 128 for begin, end in pairwise(frame_ends(length)))


@given(st.integers(1, 3 * TAIL), st.sampled_from([536, SEGMENT, 8948]))
def test_frames_are_whole_segments_and_last_one_is_short(length: int, segment: int) -> None:
    *ends, _ = frame_ends(length, segment)
    assert all(end % segment == 0 for end in ends)
    assert wire.framed_size(length) - ends[-1] <= segment + wire.LINE + wire.TRAILER.size


@given(st.integers(0, 3 * TAIL), st.integers(1, 3 * TAIL))
def test_frame_ends_after_its_position(position: int, rest: int) -> None:
    assert position < frame_end(position, position + rest, SEGMENT) <= position + rest
