"""Gating traces are read whole or refused whole, with every fault in its place."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.traces import Gating, gating, repeated
from moefabric.errors import SpecError

SQUARE = [[9, 3], [5, 7]]


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    if isinstance(content, dict) and all(isinstance(value, np.ndarray) for value in content.values()):
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
def test_a_matrix_is_one_iteration_of_one_layer(tmp_path: Path, name: str, content: Any) -> None:
    read = gating(written(tmp_path, name, content))
    assert (read.iterations, read.layers, read.ranks, read.experts) == (1, 1, 2, 2)
    assert read.tokens.dtype == np.int64
    assert read.matrix(5, 3).tolist() == SQUARE
    assert read.source == str(tmp_path / name)


def test_a_training_trace_keeps_step_layer_rank_and_expert(tmp_path: Path) -> None:
    counts = np.arange(3 * 2 * 4 * 8, dtype=np.uint16).reshape(3, 2, 4, 8)
    read = gating(written(tmp_path, "t.npz", {"counts": counts, "loss": np.ones(3)}))
    assert (read.iterations, read.layers, read.ranks, read.experts) == (3, 2, 4, 8)
    assert read.matrix(2, 1).tolist() == counts[2, 1].tolist()
    assert read.matrix(3, 2).tolist() == counts[0, 0].tolist()


def test_tokens_are_a_frozen_copy() -> None:
    mine = np.ones((1, 1, 2, 2), dtype=np.int64)
    read = Gating(mine)
    mine[0, 0, 0, 0] = 5
    assert read.matrix(0, 0)[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        read.tokens[0, 0, 0, 0] = 5


M = "num_global_tokens_per_expert"


@pytest.mark.parametrize(
    ("name", "content", "faults"),
    [
        pytest.param("a.csv", "1,2", [("", "a gating trace ends in .json, .txt, .npz, not '.csv'")], id="ending"),
        pytest.param("a.json", "{", [(":1", "is not JSON: Expecting property name enclosed in double quotes")], id="json"),
        pytest.param("a.json", [1], [("", f'an object with "{M}" is needed')], id="no-matrix"),
        pytest.param(
            "a.json", {M: 3}, [(f": {M}", "a matrix is needed: a list of rows, each a list of token counts")], id="no-rows"
        ),
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
            "a.json", {M: SQUARE, "row_sum": 11}, [(f": {M}[0]", "sums to 12, not to row_sum 11"),
            (f": {M}[1]", "sums to 12, not to row_sum 11")], id="row-sum",
        ),
        pytest.param("a.txt", "1 2\n", [(":1", "is not a matrix [[...],[...]]: Extra data")], id="text"),
        pytest.param("a.npz", "no zip", [("", "is not an archive of plain arrays (numpy.savez)")], id="npz"),
        pytest.param("a.npz", {"loss": np.ones(3)}, [("", 'has no array "counts", only loss')], id="npz-other"),
        pytest.param(
            "a.npz", {"counts": np.ones((2, 2, 2, 2))}, [(": counts", "whole numbers are needed, not float64")], id="float"
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
            [(": counts", "[0][1][1][1]: -4 tokens are fewer than none")],
            id="negative",
        ),
    ],
)  # fmt: skip
def test_a_bad_trace_is_refused(
    tmp_path: Path, name: str, content: Any, faults: list[tuple[str, str]]
) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(SpecError) as refused:
        gating(path)
    assert refused.value.faults == tuple((f"{path}{place}", what) for place, what in faults)


def test_a_missing_trace_names_its_path_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        gating(tmp_path / "none.json")
    remedy = "there is no such file; paths in a spec are relative to the spec's folder"
    assert refused.value.faults == ((f"{tmp_path}/none.json", remedy),)


def test_a_trace_repeats_for_more_ranks_and_experts() -> None:
    assert repeated(np.array(SQUARE), 3, 4).tolist() == [[9, 3, 9, 3], [5, 7, 5, 7], [9, 3, 9, 3]]
    assert repeated(np.array([[SQUARE]]), 1, 1).tolist() == [[[[9]]]]
