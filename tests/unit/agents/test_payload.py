"""Payloads: no byte can be changed, lost, doubled or moved unnoticed."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.agents.engine.payload import CHUNK, Pattern, Payload, transfer_seed, unnamed_file
from moefabric.agents.engine.sockets import pacing_option
from moefabric.agents.engine.wire import HEADER

PATTERN = Pattern()
LENGTH = 2 * CHUNK + 777


def sent(seed: int, length: int = LENGTH) -> bytearray:
    """Return the payload of a seed."""
    payload, whole = Payload(PATTERN, seed, length), bytearray()
    while payload.position < length:
        begin, size = payload.extent(100_000)
        whole += PATTERN.view[begin : begin + size]
        payload.advance(size)
    return whole


def first_wrong(seed: int, came: bytearray) -> int | None:
    """Return where a receiver finds the first wrong byte."""
    return Payload(PATTERN, seed, LENGTH).accept(came, 0, min(len(came), LENGTH))


seeds = st.integers(0, 2**32 - 1)
places = st.integers(0, LENGTH - 1)


@given(seeds, places, st.integers(1, 255))
def test_verify_finds_a_changed_byte(seed: int, place: int, by: int) -> None:
    came = sent(seed)
    came[place] ^= by
    assert first_wrong(seed, came) == place


@given(seeds, places, st.integers(1, 2 * CHUNK))
def test_verify_finds_lost_bytes(seed: int, place: int, count: int) -> None:
    came = sent(seed)
    del came[place : place + count]
    assert len(came) < LENGTH
    came += bytes(LENGTH - len(came))
    assert first_wrong(seed, came) is not None


@given(seeds, st.integers(0, LENGTH // 2), st.integers(0, LENGTH // 2), st.integers(1, 70_000))
def test_verify_finds_swapped_bytes(seed: int, one: int, other: int, count: int) -> None:
    came = sent(seed)
    original = bytes(came)
    first, second = sorted((one, other))
    count = min(count, second - first)
    a, b = came[first : first + count], came[second : second + count]
    came[first : first + len(b)], came[second : second + len(a)] = b, a
    assert (first_wrong(seed, came) is None) == (came == original)


@given(seeds, st.integers(0, 5 * CHUNK), st.lists(st.integers(1, 400_000), max_size=6))
def test_checksum_is_independent_of_read_sizes(seed: int, length: int, cuts: list[int]) -> None:
    sender, receiver = Payload(PATTERN, seed, length), Payload(PATTERN, seed, length)
    whole, at = sent(seed, length), 0
    while sender.position < length:
        sender.advance(sender.extent(1 << 30)[1])
    for cut in [*cuts, length]:
        count = min(cut, length - at)
        assert receiver.accept(whole, at, count) is None
        at += count
    assert receiver.checksum == sender.checksum
    assert length < 2 or sender.checksum != Payload(PATTERN, seed, length).checksum


@given(st.integers(0, 9), st.integers(0, 9))
def test_transfers_of_one_connection_have_different_seeds(one: int, other: int) -> None:
    a, b = (transfer_seed("s0", "s1", "o0", 7, sequence) for sequence in (one, other))
    assert (a == b) == (one == other)


@pytest.mark.parametrize("place", range(64))
def test_unpack_refuses_a_wrong_bit(place: int) -> None:
    frame = bytearray(HEADER.pack(7, 0, 5000, 1, 2))
    assert HEADER.unpack(bytes(frame)) == (7, 0, 5000, 1, 2)
    frame[place] ^= 1
    assert HEADER.unpack(bytes(frame)) is None


@pytest.mark.parametrize(
    ("rate_bps", "expected"),
    [
        pytest.param(None, b"\xff\xff\xff\xff", id="unlimited"),
        pytest.param(8e6, b"\x40\x42\x0f\x00", id="a-million-bytes-a-second"),
        pytest.param(400e9, b"\x00\x74\x3b\xa4\x0b\x00\x00\x00", id="beyond-32-bits"),
        pytest.param(0.1, b"\x01\x00\x00\x00", id="never-zero-which-would-stop-it"),
    ],
)
def test_pacing_option_is_in_bytes_per_second(rate_bps: float | None, expected: bytes) -> None:
    assert pacing_option(rate_bps) == expected


def test_file_of_the_block_is_in_memory_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "no files without names")

    files = [unnamed_file(b"content")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        files.append(unnamed_file(b"content"))
    for fd in files:
        assert os.pread(fd, 100, 0) == b"content"
        assert os.fstat(fd).st_nlink == 0
        os.close(fd)
