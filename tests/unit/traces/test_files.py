"""Trace files are read within bounds, and their names give the ranks."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from moefabric.core.errors import TraceError
from moefabric.traces.files import file_families, parse_json, rank_files, read_bytes, read_json


def test_gzip_is_told_from_the_content(tmp_path: Path) -> None:
    file = tmp_path / "trace.et"
    file.write_bytes(gzip.compress(b"abc"))
    assert read_bytes(file) == b"abc"


def test_bytes_up_to_the_limit_are_read_and_one_more_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.gz"
    file.write_bytes(gzip.compress(bytes(1000)))
    assert read_bytes(file, limit=1000) == bytes(1000)
    with pytest.raises(TraceError, match=r"trace.gz: is larger than 999 bytes"):
        read_bytes(file, limit=999)


def test_a_gzip_bomb_is_refused_without_its_memory(tmp_path: Path) -> None:
    file = tmp_path / "trace.gz"
    file.write_bytes(gzip.compress(bytes(64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="larger than 1000 bytes"):
            read_bytes(file, limit=1000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_cut_gzip_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "trace.gz"
    file.write_bytes(gzip.compress(b"abc" * 100)[:-9])
    with pytest.raises(TraceError, match="gzip data are damaged"):
        read_bytes(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1,\n 2,}", "line 2, column 4: is not JSON"),
        ("[" * 200_000, "nested too deeply"),
        ("9" * 5000, "is not JSON"),
    ],
)
def test_broken_json_is_a_fault_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse_json(tmp_path / "a.json", text)


def test_bytes_that_are_not_text_are_a_fault_with_the_offset(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(TraceError, match=r"a\.json: byte 7: is not text in UTF-8: byte 0xff"):
        read_json(file)


@pytest.mark.parametrize(
    "names",
    [
        ["m.0.et", "m.1.et", "m.2.et"],
        ["rank-0.json", "rank-1.json"],
        ["worker0_step_12.500.pt.trace.json", "worker1_step_12.499.pt.trace.json"],
        [f"a{n}.et" for n in range(12)],
    ],
)
def test_ranks_are_read_from_the_names_of_a_folder(tmp_path: Path, names: list[str]) -> None:
    for name in [*names, "groups.json", ".m.9.et"]:
        (tmp_path / name).touch()
    assert rank_files(tmp_path) == {n: tmp_path / name for n, name in enumerate(names)}


def test_a_prefix_selects_one_of_two_traces(tmp_path: Path) -> None:
    for name in ["a[x].0.et", "a[x].1.et", "b.0.et"]:
        (tmp_path / name).touch()
    assert sorted(rank_files(tmp_path / "a[x]")) == [0, 1]
    assert len(file_families(tmp_path)) == 2
    with pytest.raises(TraceError, match=r"several traces \(a\[x\].0.et, b.0.et\)"):
        rank_files(tmp_path)


@pytest.mark.parametrize("names", [[], ["m.1.et", "m.2.et"], ["m.et"]])
def test_a_folder_without_rank_0_is_a_fault(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(TraceError, match="no files numbered by rank from 0"):
        rank_files(tmp_path)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    for rank in (0, 2, 3):
        (tmp_path / f"et.{rank}").touch()
    with pytest.raises(TraceError, match=r"has no file of rank 1: et\.1 is missing"):
        rank_files(tmp_path)


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing\.et: there is no such file"):
        rank_files(tmp_path / "nothing.et")
