"""Gating traces are read completely or refused with all faults, each with its place."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moefabric.core.errors import SpecError
from moefabric.traces import files, gating_files
from moefabric.traces.gating_files import read_gating
from moefabric.workload.gating.traces import (
    GatingTrace,
    repeat_for_servers,
    repeat_tokens,
    server_skew,
)
from tests.support.paths import EXAMPLES

SQUARE = [[9, 3], [5, 7]]


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    if isinstance(content, dict) and all(
        isinstance(value, np.ndarray) for value in content.values()
    ):
        np.savez(path, **content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("m.json", {"num_global_tokens_per_expert": SQUARE, "row_sum": 12}, id="json"),
        pytest.param("m.json", {"num_global_tokens_per_expert": SQUARE}, id="json-without-row-sum"),
        pytest.param("m.txt", "[[9,3],[5,7]]\n", id="one-line"),
        pytest.param("m.npz", {"counts": np.array([[SQUARE]], dtype=np.uint16)}, id="npz"),
    ],
)
def test_read_gating_of_a_matrix_is_one_iteration_of_one_layer(
    tmp_path: Path, name: str, content: Any
) -> None:
    read = read_gating(written(tmp_path, name, content))
    assert read.tokens.shape == (1, 1, 2, 2)
    assert read.tokens.dtype == np.int64
    assert read.matrix(5, 3).tolist() == SQUARE
    assert read.source == str(tmp_path / name)


def test_read_gating_of_a_training_trace_keeps_all_dimensions(tmp_path: Path) -> None:
    counts = np.arange(3 * 2 * 4 * 8, dtype=np.uint16).reshape(3, 2, 4, 8)
    read = read_gating(written(tmp_path, "t.npz", {"counts": counts, "loss": np.ones(3)}))
    assert read.tokens.shape == (3, 2, 4, 8)
    assert read.matrix(2, 1).tolist() == counts[2, 1].tolist()
    assert read.matrix(3, 2).tolist() == counts[0, 0].tolist()


def test_gating_trace_copies_and_freezes_tokens() -> None:
    array = np.ones((1, 1, 2, 2), dtype=np.int64)
    read = GatingTrace(array)
    array[0, 0, 0, 0] = 5
    assert read.matrix(0, 0)[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        read.tokens[0, 0, 0, 0] = 5


M = "num_global_tokens_per_expert"
NO_MATRIX = "a matrix is needed: a list of rows, each a list of token counts"


@pytest.mark.parametrize(
    ("name", "content", "faults"),
    [
        pytest.param(
            "a.csv",
            "1,2",
            [("", "a gating trace ends in .json, .json.gz, .txt, .npz, not '.csv'")],
            id="ending",
        ),
        pytest.param(
            "a.json",
            "{",
            [
                (
                    ": line 1, column 2",
                    "is not JSON: Expecting property name enclosed in double quotes",
                )
            ],
            id="json",
        ),
        pytest.param(
            "a.json",
            [1],
            [("", f'an object with "{M}" or "logical_count" is needed')],
            id="no-matrix",
        ),
        pytest.param("a.json", {M: 3}, [(f": {M}", NO_MATRIX)], id="no-rows"),
        pytest.param(
            "a.json",
            {M: [[1, 2, 3], [4, 5, 6]]},
            [
                (f": {M}[0]", "3 counts, but the matrix has 2 rows; it must be square"),
                (f": {M}[1]", "3 counts, but the matrix has 2 rows; it must be square"),
            ],
            id="not-square",
        ),
        pytest.param(
            "a.txt",
            "[[1,-2],[0.5,true]]",
            [
                (": [0][1]", "-2 is not a count of tokens"),
                (": [1][0]", "0.5 is not a count of tokens"),
                (": [1][1]", "True is not a count of tokens"),
            ],
            id="every-bad-count",
        ),
        pytest.param(
            "a.json",
            {M: SQUARE, "row_sum": 11},
            [
                (f": {M}[0]", "sums to 12, not to row_sum 11"),
                (f": {M}[1]", "sums to 12, not to row_sum 11"),
            ],
            id="row-sum",
        ),
        pytest.param(
            "a.txt", "1 2\n", [(": line 1, column 3", "is not JSON: Extra data")], id="text"
        ),
        pytest.param(
            "a.npz", "no zip", [("", "is not an archive of plain arrays (numpy.savez)")], id="npz"
        ),
        pytest.param(
            "a.npz",
            {"loss": np.ones(3)},
            [("", 'has no array "counts", only loss')],
            id="npz-other",
        ),
        pytest.param(
            "a.npz",
            {"counts": np.ones((2, 2, 2, 2))},
            [(": counts", "whole numbers are needed, not float64")],
            id="float",
        ),
        pytest.param(
            "a.npz",
            {"counts": np.ones((2, 2), dtype=np.int64)},
            [(": counts", "shape (2, 2) is not iterations x layers x ranks x experts")],
            id="shape",
        ),
        pytest.param(
            "a.npz",
            {"counts": np.array([[SQUARE, [[1, 2], [3, -4]]]])},
            [(": counts", "[0][1][1][1]: -4 tokens: counts must not be negative")],
            id="negative",
        ),
    ],
)
def test_read_gating_refuses_a_bad_trace(
    tmp_path: Path, name: str, content: Any, faults: list[tuple[str, str]]
) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(SpecError) as refused:
        read_gating(path)
    assert refused.value.errors == tuple((f"{path}{place}", what) for place, what in faults)


def test_read_gating_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        read_gating(tmp_path / "none.json")
    assert refused.value.errors == ((f"{tmp_path}/none.json", "there is no such file"),)


def test_repeat_tokens_repeats_ranks_in_order() -> None:
    assert repeat_tokens(np.array(SQUARE), 3, 2, seed=1).tolist() == [[9, 3], [5, 7], [9, 3]]
    assert repeat_tokens(np.array([[SQUARE]]), 1, 1, seed=1).tolist() == [[[[9]]]]


def test_repeat_tokens_shuffles_copies_of_experts_alike_for_all_ranks() -> None:
    recorded = np.arange(2 * 3 * 4 * 8).reshape(2, 3, 4, 8)
    repeated = repeat_tokens(recorded, 4, 64, seed=1)
    origin = repeated[0, 0, 0]
    assert sorted(origin.tolist()) == sorted(8 * list(range(8)))
    assert origin.tolist() != 8 * list(range(8))
    assert (repeated == recorded[..., origin]).all()
    assert (repeat_tokens(recorded, 4, 64, seed=1) == repeated).all()
    assert (repeat_tokens(recorded, 4, 64, seed=2) != repeated).any()


def test_copies_in_order_would_make_servers_equal() -> None:
    """16 experts on 2 servers are uneven, their 16 copies in order on 8 servers are not."""
    recorded = read_gating(EXAMPLES / "data/training-1200-steps.npz").tokens[600:603]
    in_order = np.tile(recorded, 16)
    assert server_skew(in_order, 8) == pytest.approx(1.0)
    shuffled = repeat_tokens(recorded, 8, 256, seed=1)
    assert 1.05 < server_skew(shuffled, 8) < server_skew(recorded, 8)
    with pytest.raises(ValueError, match=r"copies of 16 experts the busiest server has 1\.\d\d"):
        repeat_for_servers(recorded, 8, 256, 8, seed=1)


def test_repetition_that_keeps_the_skew_of_servers_is_allowed() -> None:
    recorded = read_gating(EXAMPLES / "data/training-1200-steps.npz").tokens[600:603]
    for ranks, experts, servers in ((32, 32, 4), (64, 16, 8), (8, 48, 3)):
        repeated = repeat_for_servers(recorded, ranks, experts, servers, seed=1)
        assert (repeated == repeat_tokens(recorded, ranks, experts, seed=1)).all()


def test_server_skew_is_busiest_to_mean_in_the_median_layer() -> None:
    layers = np.array([[[3, 3, 1, 1]], [[1, 1, 1, 1]], [[4, 4, 0, 0]]])
    assert server_skew(layers, 2) == pytest.approx(1.5)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_read_gating_of_an_expert_distribution(tmp_path: Path, suffix: str, steps: int) -> None:
    """Layers without experts have zeros in each step."""
    counts = [[[0.0] * 4, [6.0, 2.0, 0.0, 8.0], [1.0, 2.0, 3.0, 4.0]]] * steps
    text = json.dumps({"logical_count": counts if steps > 1 else counts[0]})
    path = tmp_path / f"d{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix == ".json.gz" else text.encode())
    read = read_gating(path)
    assert read.tokens.shape == (steps, 2, 1, 4)
    assert read.matrix(0, 0).tolist() == [[6, 2, 0, 8]]
    assert read.matrix(steps - 1, 1).tolist() == [[1, 2, 3, 4]]


def test_deepseek_expert_loads_are_complete_and_uneven() -> None:
    """Each of 58 MoE layers counts 2^23 tokens of 8 experts each."""
    tokens = read_gating(EXAMPLES / "data/deepseek-r1-prefill-4096.json.gz").tokens
    assert tokens.shape == (1, 58, 1, 256)
    assert set(tokens.sum(axis=(2, 3)).ravel().tolist()) == {8 * 2**23}
    assert server_skew(tokens, 8) == pytest.approx(1.82, abs=0.01)
    assert server_skew(tokens, 64) == pytest.approx(3.29, abs=0.01)


def test_layers_of_the_deepseek_example_have_the_median_skew() -> None:
    """Layers 54 and 55 are the two in the middle of 58."""
    tokens = read_gating(EXAMPLES / "data/deepseek-r1-prefill-4096.json.gz").tokens
    skews = [server_skew(tokens[:, layer], 8) for layer in range(58)]
    assert set(np.argsort(skews)[28:30].tolist()) == {54, 55}


def test_file_larger_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 100)
    monkeypatch.setattr(gating_files, "MAX_ARRAY_BYTES", 100)
    path = tmp_path / "m.json.gz"
    path.write_bytes(gzip.compress(b" " * 101))
    with pytest.raises(SpecError, match="is larger than 100 bytes, which is the limit"):
        read_gating(path)
    archive = tmp_path / "m.npz"
    np.savez_compressed(archive, counts=np.zeros((1, 1, 8, 8), dtype=np.int64))
    with pytest.raises(SpecError, match=r"has an array of 512 bytes .*; the limit is 100"):
        read_gating(archive)
