"""Damaged text files are refused with their place, whatever is damaged."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.errors import TraceError
from moefabric.traces.formats import TraceReader
from moefabric.traces.gating_files import CountsCsvReader
from moefabric.traces.goal import GoalReader
from moefabric.traces.nccl_log import NcclLogReader
from moefabric.traces.route_files import RoutesReader
from moefabric.traces.simai import SimaiReader
from moefabric.workload.gating.traces import GatingTrace
from moefabric.workload.graphs.execution_graph import ExecutionGraph
from tests.support.paths import GOLDEN

_LINE = "h:1:1 [0] NCCL INFO "
SAMPLES: dict[str, tuple[TraceReader, str]] = {
    "goal": (
        GoalReader(),
        (
            "// time unit: ps\nnum_ranks 2\nrank 0 {\nl1: calc 5 cpu 0 // a\n"
            "l2: send 9b to 1 tag 3\nl2 requires l1\nl2 irequires l1\n}\n"
            "rank 1 {\nx: recv 9b from 0 tag 3 cpu 1\n}\n"
        ),
    ),
    "simai": (
        SimaiReader(),
        (
            "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 "
            "all_gpus: 8 checkpoints: 1 0 checkpoint_initiates: 1 1 pp_comm 9\n2\n"
            "a -1 5 ALLGATHER 64 6 NONE 0 7 ALLREDUCE 128 100\n"
            "b -1 5 ALLTOALL_EP 64 6 REDUCESCATTER 64 7 ALLGATHER_DP_EP 128 100\n"
        ),
    ),
    "nccl-log": (
        NcclLogReader(),
        (
            f"{_LINE}ncclCommInitRank comm 0xa rank 0 nranks 1 busId 1 commId 0x1 - Init COMPLETE\n"
            f"{_LINE}comm 0xb rank 0 nranks 1 busId 1 parent 0xa color 2 - Init COMPLETE\n"
            f"{_LINE}AllGather: opCount 1f sendbuff 0x1 recvbuff 0x2 count 7 datatype 7 op 0 "
            "root 0 comm 0xb [nranks=1] stream 0x3\n"
            f"{_LINE}Send: opCount 2 sendbuff 0x1 recvbuff 0x2 count 7 datatype 7 op 0 root 0 "
            "comm 0xa [nranks=1] stream 0x4\n"
        ),
    ),
    "counts": (CountsCsvReader(), "step,layer,source,expert,tokens\n0,1,0,3,5\n1,1,1,0,7\n"),
    "wide": (CountsCsvReader(), "layer,rank,c0,c1\n0,0,4,5\n0,1,6,7\n"),
    "routes": (
        RoutesReader(),
        "\n".join(
            json.dumps({"type": "route", "layer": n, "rank": n, "step": 0, "topk_ids": [[n, 1]]})
            for n in range(3)
        ),
    ),
}
INSERTIONS = (b"", b"\x00", b"\xff", b"-", b"9" * 30, b" ", b"\n", b"{", b'"', b",", b"1e400")


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_read(name: str, tmp_path: Path) -> None:
    reader, text = SAMPLES[name]
    path = tmp_path / "t"
    path.write_text(text)
    assert reader.matches(path, text.encode())
    reader.read(path)


@pytest.mark.parametrize("name", SAMPLES)
@given(data=st.data())
def test_damaged_file_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reader, text = SAMPLES[name]
    content = text.encode()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 12))
        insertion = data.draw(st.sampled_from(INSERTIONS) | st.binary(max_size=4))
        content = content[:start] + insertion + content[start + length :]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)
    reader.matches(path, content)
    with suppress(TraceError):
        assert isinstance(reader.read(path), ExecutionGraph | GatingTrace)


@pytest.mark.parametrize("name", SAMPLES)
def test_file_of_another_format_is_not_taken(name: str, tmp_path: Path) -> None:
    _, text = SAMPLES[name]
    path = tmp_path / "t"
    path.write_text(text)
    taken = {other for other, (reader, _) in SAMPLES.items() if reader.matches(path, text.encode())}
    both_counts = {"counts", "wide"}
    assert taken == (both_counts if name in both_counts else {name})


def test_golden_files_are_recognised() -> None:
    files = [*(GOLDEN / "simulators").glob("*8.goal")]
    assert len(files) == 2
    for file in files:
        taken = [n for n, (reader, _) in SAMPLES.items() if reader.matches(file, file.read_bytes())]
        assert taken == [file.suffix[1:]]
