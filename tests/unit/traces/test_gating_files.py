"""Gating in CSV, JSON lines and Parquet: counts, recognition, experiments, faults."""

from __future__ import annotations

import gzip
import json
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moefabric.core.errors import SpecError, TraceError, UnsupportedError
from moefabric.traces import route_files
from moefabric.traces.formats import read_trace, trace_reader
from moefabric.traces.gating_files import CountsCsvReader, counts_csv, load_gating, write_gating
from moefabric.ui.cli.main import main
from moefabric.workload.gating.traces import GatingTrace
from tests.support.paths import EXAMPLES

TRAINING = EXAMPLES / "data" / "training-1200-steps.npz"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@given(
    tokens=arrays(np.int64, st.tuples(*[st.integers(1, 3)] * 4), elements=st.integers(0, 1 << 40))
)
def test_counts_come_back_from_csv(
    tokens: np.ndarray[Any, np.dtype[np.int64]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Iterations and layers without tokens are left out, so that each has some here."""
    tokens = tokens + 1
    path = written(tmp_path_factory.getbasetemp(), "g.csv", counts_csv(GatingTrace(tokens)))
    assert np.array_equal(CountsCsvReader().read(path).tokens, tokens)


@pytest.mark.parametrize("form", ["csv", "npz"])
def test_training_trace_comes_back(tmp_path: Path, form: str) -> None:
    trace = GatingTrace(load_gating(TRAINING).tokens[:3])
    path = tmp_path / f"g.{form}"
    write_gating(trace, path, form)
    read = load_gating(path)
    assert np.array_equal(read.tokens, trace.tokens)
    with pytest.raises(SpecError, match="'goal' is not one of csv, npz"):
        write_gating(trace, path, "goal")


ROUTES = [
    {"type": "meta", "model": "m"},
    {"type": "route", "req_id": 1, "token_idx": 0, "layer": 7, "topk_ids": [3, 0]},
    {"type": "route", "req_id": 1, "token_idx": 1, "layer": 7, "topk_ids": [3, 1]},
    {"layer": 2, "topk_experts": [[0, 1], [0, 2]], "rank": 1, "step": 4},
]
LINES = "\n".join(map(json.dumps, ROUTES)) + "\n\n"


@pytest.mark.parametrize(
    ("name", "text", "reader", "tokens"),
    [
        ("m.csv", "1,2\n3,4\n", "gating-csv", [[[[1, 2], [3, 4]]]]),
        (
            "long.csv",
            "layer,source,expert,tokens\n2,1,1,2\n2,0,0,6\n5,0,2,7\n2,1,1,3\n",
            "gating-csv",
            [[[[6, 0, 0], [0, 5, 0]], [[0, 0, 7], [0, 0, 0]]]],
        ),
        ("wide.csv", "name,step,c0,c1\nx,0,1,2\ny,3,4,5\n", "gating-csv", [[[[1, 2]]], [[[4, 5]]]]),
        (
            "r.jsonl",
            LINES,
            "routes",
            [
                [[[0] * 4, [0] * 4], [[1, 1, 0, 2], [0] * 4]],
                [[[0] * 4, [2, 1, 1, 0]], [[0] * 4, [0] * 4]],
            ],
        ),
        ("e", '{"logical_count": [[0.0, 0.0], [5.0, 3.0]]}', "sglang", [[[[5, 3]]]]),
        ("mixnet", "[[1,2],[3,4]]\n", "gating", [[[[1, 2], [3, 4]]]]),
        (
            "upstream",
            '{"num_global_tokens_per_expert": [[1, 2], [3, 4]]}',
            "gating",
            [[[[1, 2], [3, 4]]]],
        ),
    ],
)
def test_file_is_recognised_and_counted(
    tmp_path: Path, name: str, text: str, reader: str, tokens: list[Any]
) -> None:
    path = written(tmp_path, name, text)
    assert trace_reader(path).name == reader
    assert load_gating(path).tokens.tolist() == tokens


def test_compressed_files_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "routes.gz"
    path.write_bytes(gzip.compress(LINES.encode()))
    assert load_gating(path).tokens.shape == (2, 2, 2, 4)
    distribution = EXAMPLES / "data" / "deepseek-r1-prefill-4096.json.gz"
    assert trace_reader(distribution).name == "sglang"
    assert trace_reader(TRAINING).name == "gating"
    trace = read_trace(TRAINING)
    assert isinstance(trace, GatingTrace)
    assert trace.tokens.shape == (1200, 4, 8, 16)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "1,2\n3\n", "line 2: 1 columns are not 2"),
        ("a.csv", "1,2\n3,-4\n", "line 2: '-4' is not a count"),
        ("a.csv", "expert,tokens\n1\n", "line 2: 1 columns are not 2"),
        ("a.csv", "expert,tokens\n70000,1\n", "line 2: expert '70000' is not a number from 0 to"),
        ("a.csv", "expert,tokens\n", "there are no counts"),
        (
            "a.csv",
            "rank,layer,step,expert,tokens\n60000,1,1,60000,1\n60000,2,2,0,0\n",
            "2 x 2 x 60001 x 60001 counts are more than",
        ),
        ("a.jsonl", '{"layer":1,"topk_ids":[0]}\n{"layer"', "line 2: is not JSON"),
        ("a.jsonl", '{"layer":1,"topk_ids":[0]}\n[1]\n', "line 2: an object is needed"),
        ("a.jsonl", '{"topk_ids":[0]}\n', "line 1: layer and a list topk_ids or"),
        ("a.jsonl", '{"layer":1,"topk_ids":[-1]}\n', "line 1: expert '-1' is not a number from 0"),
        ("a.jsonl", '{"layer":1.5,"topk_ids":[1]}\n', "line 1: layer '1.5' is not a number"),
        ("a.jsonl", '{"layer":1,"topk_ids":[true]}\n', "line 1: expert 'True' is not a number"),
    ],
)
def test_wrong_file_is_refused_in_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        load_gating(written(tmp_path, name, text))
    assert message in str(caught.value)


def test_counts_need_their_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "layer,expert\n1,2\n")
    with pytest.raises(TraceError, match="line 1: there is no column tokens"):
        read_trace(path, "gating-csv")


def test_graph_is_not_gating(tmp_path: Path) -> None:
    path = written(tmp_path, "flows.goal", "num_ranks 1\nrank 0 {\n}\n")
    with pytest.raises(TraceError, match=r"is a trace of operations \(goal\), not of gating"):
        load_gating(path)


def test_experiment_predicts_with_routes(tmp_path: Path) -> None:
    """Routes of 8 ranks to the 8 experts of Mixtral 8x7B replace a recorded matrix."""
    random = np.random.default_rng(1)
    lines = [
        json.dumps({"layer": 0, "rank": rank, "topk_ids": random.choice(8, 2, False).tolist()})
        for rank in range(8)
        for _ in range(20)
    ]
    routes = written(tmp_path, "routes.jsonl", "\n".join(lines))
    settings = ["gating.matrix=null", f"gating.trace={routes}"]
    arguments = ["predict", str(EXAMPLES / "prototype.yaml")]
    result = CliRunner().invoke(main, arguments + [w for s in settings for w in ("--set", s)])
    assert result.exit_code == 0, result.output


def test_parquet_without_pyarrow_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "layer_02.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(UnsupportedError, match=f"{sys.executable} -m pip install pyarrow$"):
        load_gating(path)


@pytest.mark.nightly
def test_parquet_in_flame_moes_layout_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="nightly: needs pyarrow: packaging/setup all")
    parquet = pytest.importorskip("pyarrow.parquet")
    for iteration, layer, routes in (
        (100, 2, [[0, 5], [5, 1]]), (100, 3, [[2, 3]]), (200, 2, [[1, 0]]), (200, 3, []),
    ):  # fmt: skip
        file = tmp_path / "actives" / f"iter_{iteration:04d}" / f"layer_{layer:02d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        scores = [[0.5] * len(route) for route in routes]
        table = arrow.table(
            {
                "scores": arrow.array(scores, arrow.list_(arrow.float16())),
                "indices": arrow.array(routes, arrow.list_(arrow.int16())),
            }
        )
        parquet.write_table(table, file)
    assert trace_reader(tmp_path).name == "routes-parquet"
    monkeypatch.setattr(route_files, "PARQUET_ROWS", 1)
    read = load_gating(tmp_path / "actives")
    assert read.tokens.shape == (2, 2, 1, 6)
    assert read.tokens[0].tolist() == [[[1, 1, 0, 0, 0, 2]], [[0, 0, 1, 1, 0, 0]]]
    last = tmp_path / "actives" / "iter_0200" / "layer_03.parquet"
    assert load_gating(last).tokens.tolist() == [[[[0]]]]
    broken = tmp_path / "actives" / "iter_0300" / "layer_02.parquet"
    broken.parent.mkdir()
    broken.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(TraceError, match=r"iter_0300/layer_02\.parquet: can't be read as Parquet"):
        load_gating(tmp_path)


def archive(path: Path, header: str, contents: bytes) -> Path:
    """Write an archive with one array, `counts`, whose header and contents may differ."""
    text = header.ljust(117) + "\n"
    with zipfile.ZipFile(path, "w") as members:
        head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
        members.writestr("counts.npy", head + contents)
    return path


@pytest.mark.parametrize(
    ("shape", "contents", "message"),
    [
        ("(1000000000000, 1000)", b"", "array of 8000000000000000 bytes .* the limit is"),
        ("(2, 2, 2, 2)", bytes(100), "is not an archive of plain arrays"),
        ("(-4, 4)", bytes(128), "is not an archive of plain arrays"),
    ],
)
def test_array_is_judged_by_its_header(
    tmp_path: Path, shape: str, contents: bytes, message: str
) -> None:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}"
    path = archive(tmp_path / "g.npz", header, contents)
    with pytest.raises(TraceError, match=message):
        load_gating(path)


def test_parquet_with_too_many_tokens_or_choices_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="nightly: needs pyarrow: packaging/setup all")
    parquet = pytest.importorskip("pyarrow.parquet")
    column = arrow.array([[1, 2]] * 600, type=arrow.list_(arrow.int64()))
    parquet.write_table(arrow.table({"indices": column}), tmp_path / "layer.parquet")
    assert load_gating(tmp_path / "layer.parquet").tokens.sum() == 1200
    for most, message in ((1000, "has more than 1000 choices"), (500, "has 600 tokens, .* limits")):
        monkeypatch.setattr(route_files, "MAX_CHOICES", most)
        with pytest.raises(TraceError, match=message):
            load_gating(tmp_path / "layer.parquet")
