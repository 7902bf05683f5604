"""Codecs of blocks: exact streams, errors within their bound, and strange blocks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from moefabric_studies.codecs.block_codecs import BLOCK_CODECS, HYBRID, block_codec
from moefabric_studies.codecs.code_streams import STREAMS, VectorLz
from moefabric_studies.codecs.error_bounded import ErrorBounded, error_bounds, rounded

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, max_side=70)
CODES = st.sampled_from(["i1", "<i2", "<i4"]).flatmap(
    lambda dtype: hnp.arrays(dtype, SHAPES, elements=st.integers(-3, 3) | st.integers(-128, 127))
)
LARGE = float(np.float32(3.4e38))
BLOCKS = hnp.arrays(
    np.float32, SHAPES, elements=st.floats(-1, 1, width=32) | st.floats(-LARGE, LARGE, width=32)
)
CONSTANT = np.full((40, 8), 2.5, np.float32)
OFFSET = np.linspace(1000, 1000.001, 64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize("stream", STREAMS)
@given(codes=CODES)
def test_streams_return_the_same_codes(stream: str, codes: Any) -> None:
    rows, dimension = codes.shape
    coded = STREAMS[stream].encode(codes)
    decoded = STREAMS[stream].decode(coded, rows, dimension, codes.dtype)
    assert decoded.dtype == codes.dtype
    assert np.array_equal(decoded, codes)


@given(block=BLOCKS, bound=st.sampled_from([1e-5, 0.01, 0.03, 0.1]))
@example(block=CONSTANT, bound=0.03)
@example(block=OFFSET, bound=0.01)
@example(block=np.zeros((1, 1), np.float32), bound=0.03)
@example(block=np.full((2, 2), 1e-44, np.float32) * [[1], [3]], bound=0.03)
@settings(deadline=None, max_examples=2 * settings().max_examples)
def test_error_stays_within_the_bound(block: Any, bound: float) -> None:
    block = block.astype(np.float32)
    codec = ErrorBounded(bound)
    decoded = codec.decode(codec.encode(block))
    errors = np.abs(decoded.astype(np.float64) - block)
    assert (errors <= error_bounds(block, bound)).all()
    assert np.array_equal(decoded, rounded(block, bound))


@pytest.mark.parametrize("block", [np.full((3, 4), np.nan, np.float32), np.zeros((0, 8), "f4")])
def test_blocks_without_a_range_keep_their_bits(block: Any) -> None:
    codec = ErrorBounded(0.03)
    assert codec.decode(codec.encode(block)).tobytes() == block.tobytes()


@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_codecs_keep_shape_and_value(codec: str) -> None:
    block = np.random.default_rng(1).normal(size=(128, 32)).astype(np.float32)
    coded = block_codec(codec, 0.03).encode(block)
    decoded = block_codec(codec, 0.03).decode(coded)
    assert decoded.shape == block.shape
    assert decoded.dtype == np.float32
    assert np.abs(decoded - block).max() <= error_bounds(block, 0.03)
    assert codec == "fp32" or len(coded) < 0.6 * block.nbytes


def test_blocks_are_rounded_each_by_its_own_range() -> None:
    blocks = np.random.default_rng(2).normal(size=(3, 2, 16, 4)).astype(np.float32)
    bounds = np.array([0.01, 0.03, 0.05])[:, None, None, None]
    together = rounded(blocks, bounds)
    for table, relative in enumerate((0.01, 0.03, 0.05)):
        for part in range(2):
            assert np.array_equal(together[table, part], rounded(blocks[table, part], relative))


def test_zeros_stay_zero() -> None:
    block = np.zeros((64, 32), np.float32)
    block[3] = np.random.default_rng(3).normal(size=32)
    assert (rounded(block, 0.03)[block == 0] == 0).all()


def test_vector_lz_finds_copies_in_its_window_only() -> None:
    vectors = np.arange(40, dtype="i1")[:, None].repeat(8, axis=1)
    near = VectorLz(window=32).encode(np.concatenate([vectors[:32], vectors[:1]]))
    far = VectorLz(window=32).encode(np.concatenate([vectors[:33], vectors[:1]]))
    assert (len(near), len(far)) == (5 + 32 * 8 + 1, 5 + 34 * 8)


def test_hybrid_is_as_short_as_the_shorter_stream() -> None:
    table = np.random.default_rng(4).normal(size=(4, 32)).astype(np.float32)
    for block in (table[np.arange(256) % 4], np.tile(table, (1, 1)), table.repeat(2, axis=0)):
        sizes = {c: len(block_codec(c, 0.05).encode(block)) for c in (HYBRID, "vector-lz", "ans")}
        assert sizes[HYBRID] == min(sizes["vector-lz"], sizes["ans"])
