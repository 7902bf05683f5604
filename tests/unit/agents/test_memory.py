"""Memory of ranks: sums of numbers, contents by the pattern, and counts of wrong numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.agents.engine import memory
from moefabric.agents.engine.memory import Content, add, allocate
from moefabric.agents.engine.payload import shared_pattern
from moefabric.agents.engine.pieces import Sum
from moefabric.agents.engine.requests import RefusedError

PATTERN = shared_pattern()


def sums(a: bytes, b: bytes, element: int) -> bytes:
    """Add numbers one by one; the last one may be shorter."""
    parts = []
    for begin in range(0, len(a), element):
        x, y = a[begin : begin + element], b[begin : begin + element]
        total = int.from_bytes(x, "little") + int.from_bytes(y, "little")
        parts.append((total % (1 << 8 * len(x))).to_bytes(len(x), "little"))
    return b"".join(parts)


@given(st.integers(1, 8), st.data())
def test_add_keeps_numbers_apart(element: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 100))
    a = data.draw(st.binary(min_size=size, max_size=size))
    b = data.draw(st.binary(min_size=size, max_size=size))
    target = bytearray(a)
    add(memoryview(target), b, element)
    assert bytes(target) == sums(a, b, element)


def test_add_carries_nothing_over_blocks() -> None:
    size = 3 * memory.BLOCK + 12
    ones = bytes([0xFF]) * size
    target = bytearray(ones)
    add(memoryview(target), ones, 4)
    assert bytes(target) == (b"\xfe" + b"\xff" * 3) * (size // 4)


@given(st.integers(0, 300), st.integers(1, 8), st.lists(st.integers(1, 70), max_size=30))
def test_message_is_added_in_whatever_pieces_it_arrives(
    size: int, element: int, pieces: list[int]
) -> None:
    own, sent = bytes(i % 251 for i in range(size)), bytes(i * 7 % 256 for i in range(size))
    place = bytearray(own)
    target = Sum(memoryview(place), element)
    for piece in [*pieces, size]:
        count = min(piece, target.remaining)
        begin = target.position
        target.accept(bytearray(b"xx" + sent[begin : begin + count]), 2, count)
    assert target.remaining == 0
    assert bytes(place) == sums(own, sent, element)


@pytest.mark.parametrize("terms", [((5, 0),), ((5, 64), (6, 64), (7, 128))])
def test_content_finds_each_wrong_number(terms: tuple[tuple[int, int], ...]) -> None:
    content, right = Content(terms, 4), bytearray(200_000)
    content.write(PATTERN, memoryview(right))
    wrong = bytearray(right)
    for place in (0, 3, 100_001, 199_999):  # the first two are of one number
        wrong[place] ^= 1
    places = [memoryview(right), memoryview(wrong)]
    assert content.wrong(PATTERN, places) == [0, 3]


def test_content_is_the_same_from_any_offset() -> None:
    whole, tail = bytearray(300_000), bytearray(100_000)
    Content(((9, 0),), 4).write(PATTERN, memoryview(whole))
    Content(((9, 200_000),), 4).write(PATTERN, memoryview(tail))
    assert whole[200_000:] == tail


def test_memory_beyond_what_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 3_000_000)
    assert [len(buffer) for buffer in allocate([1_000_000, 2_000_000], "it")] == [1e6, 2e6]
    with pytest.raises(RefusedError, match="it needs 4 MB of memory, and 3 MB are free"):
        allocate([2_000_000, 2_000_000], "it")
