"""Output of a command in a container, which arrives in frames."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.emulator.containers.execution import OutputFrames


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(data)) + data


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=20))), st.integers(1, 9))
def test_frames_are_complete_however_they_are_cut(
    output: list[tuple[int, bytes]], size: int
) -> None:
    wire = b"".join(frame(stream, data) for stream, data in output)
    frames, received = OutputFrames(), {1: b"", 2: b""}
    for start in range(0, len(wire), size):
        for stream, data in frames.parts(wire[start : start + size]):
            received[stream] += data
    for stream in (1, 2):
        assert received[stream] == b"".join(data for number, data in output if number == stream)


def test_frame_is_passed_on_when_it_is_complete() -> None:
    frames, wire = OutputFrames(), frame(2, b"wrong")
    assert list(frames.parts(wire[:-1])) == []
    assert list(frames.parts(wire[-1:])) == [(2, b"wrong")]


@pytest.mark.parametrize("stream", [0, 1])
def test_all_but_standard_error_is_standard_output(stream: int) -> None:
    assert list(OutputFrames().parts(frame(stream, b"x"))) == [(1, b"x")]
