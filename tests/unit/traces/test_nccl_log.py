"""NCCL's debug logs: communicators, sizes, groups of messages, faults. The logs are synthetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from moefabric.core.errors import TraceError
from moefabric.traces.formats import trace_reader
from moefabric.traces.nccl_log import NcclLogReader
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node


def prefix(rank: int) -> str:
    return f"h{rank // 2}:{100 + rank}:{100 + rank} [{rank % 2}] NCCL INFO"


def init(rank: int, comm: str, own: int, ranks: int, rest: str) -> str:
    return (
        f"{prefix(rank)} ncclCommInitRank comm {comm} rank {own} nranks {ranks} cudaDev {rank % 2} "
        f"nvmlDev 0 busId {rank}000 {rest} - Init COMPLETE"
    )


def call(
    rank: int, name: str, count: int, comm: str, *, op: int = 0, kind: int = 7, root: int = 0,
    ranks: int = 4, stream: str = "0xf0",
) -> str:  # fmt: skip
    return (
        f"{prefix(rank)} {name}: opCount {op:x} sendbuff 0x7f0 recvbuff (nil) count {count} "
        f"datatype {kind} op 0 root {root} comm {comm} [nranks={ranks}] stream {stream} task 0"
    )


def job(rank: int) -> list[str]:
    """Return the log of one of 4 ranks: a world, pairs split from it, and five calls."""
    return [
        "a line of the training script",
        init(rank, "0xa0", rank, 4, "commId 0x11"),
        (f"{prefix(rank)} ncclCommSplit comm 0xb{rank} rank {rank // 2} nranks 2 cudaDev 0 "
        f"nvmlDev 0 busId {rank}000 parent 0xa0 splitCount 1 color {rank % 2} key 0- "
        "Init COMPLETE"),
        f"[2026-03-12 13:57:49] {call(rank, 'AllReduce', 10, '0xa0')}",
        call(rank, "ReduceScatter", 6, f"0xb{rank}", kind=9, ranks=2, stream="0xf1"),
        call(rank, "AllGather", 6, f"0xb{rank}", kind=6, ranks=2, stream="0xf1", op=1),
        call(rank, "Broadcast", 5, f"0xb{rank}", kind=0, ranks=2, root=1, stream="0xf1", op=2),
        *(
            call(rank, name, 1 + (rank + 2 * peer if name == "Send" else peer + 2 * rank), "0xa0",
                 op=10, root=peer)
            for peer in range(4)
            for name in ("Send", "Recv")
        ),
    ]  # fmt: skip


def read(folder: Path, *logs: list[str]) -> ExecutionGraph:
    for number, lines in enumerate(logs):
        (folder / f"nccl.h{number}.log").write_text("\n".join(lines) + "\n")
    return NcclLogReader().read(folder)


def test_calls_of_all_ranks_become_a_graph(tmp_path: Path) -> None:
    graph = read(tmp_path, *(job(rank) for rank in range(4)))
    assert trace_reader(tmp_path).name == "nccl-log"
    assert graph.groups == {"world": (0, 1, 2, 3), "comm1": (0, 2), "comm2": (1, 3)}
    assert graph.ranks[3] == (
        Node(0, "collective", "AllReduce", size=40, collective="all_reduce", stream=0),
        Node(
            1, "collective", "ReduceScatter", size=24, collective="reduce_scatter",
            group="comm2", stream=1,
        ),
        Node(
            2, "collective", "AllGather", (1,), size=12, collective="all_gather",
            group="comm2", stream=1,
        ),
        Node(
            3, "collective", "Broadcast", (2,), size=5, collective="broadcast", group="comm2",
            root=3, stream=1,
        ),
        Node(
            4, "collective", "AlltoAll", (0,), size=112, collective="all_to_all",
            splits=(16, 24, 32, 40), stream=0,
        ),
    )  # fmt: skip


def test_one_log_of_all_ranks_is_read_alike(tmp_path: Path) -> None:
    logs = [job(rank) for rank in range(4)]
    folder = tmp_path / "logs"
    folder.mkdir()
    separate = read(folder, *logs)
    file = tmp_path / "slurm.out"
    # Lines of ranks alternate, as they do on a terminal.
    mixed = [lines[n] for n in range(len(logs[0])) for lines in logs]
    file.write_text("\n".join(mixed))
    together = NcclLogReader().read(file)
    assert together.ranks == separate.ranks
    assert together.groups == separate.groups


def test_messages_between_neighbours_stay_messages(tmp_path: Path) -> None:
    """Ranks of a pipeline send to the next one in one group with a receive."""
    logs = []
    for rank in range(4):
        lines = [init(rank, "0xa", rank, 4, "commId 0x1")]
        lines += [call(rank, "Send", 3, "0xa", root=rank + 1)] if rank < 3 else []
        lines += [call(rank, "Recv", 3, "0xa", root=rank - 1)] if rank else []
        logs.append([*lines, call(rank, "AllReduce", 1, "0xa", op=1)])
    graph = read(tmp_path, *logs)
    assert graph.ranks[1] == (
        Node(0, "send", "Send", size=12, peer=2),
        Node(1, "receive", "Recv", size=12, peer=0),
        Node(2, "collective", "AllReduce", (0, 1), size=4, collective="all_reduce", stream=0),
    )


def test_address_of_a_destroyed_communicator_is_used_again(tmp_path: Path) -> None:
    logs = [
        [
            init(rank, "0xa", rank, 2, f"commId 0x{number}")
            if name == "init"
            else call(rank, "AllReduce", number, "0xa", ranks=2)
            for number in (1, 2)
            for name in ("init", "call")
        ]
        for rank in (0, 1)
    ]
    graph = read(tmp_path, *logs)
    assert [(n.group, n.size) for n in graph.ranks[0]] == [("world", 4), ("comm1", 8)]
    assert graph.groups["comm1"] == (0, 1)


WORLD = init(0, "0xa", 0, 1, "commId 0x1")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([call(0, "AllReduce", 1, "0xa")], "line 1: communicator 0xa is not initialised before"),
        ([WORLD], "there are no calls: set NCCL_DEBUG_SUBSYS=INIT,COLL"),
        ([WORLD, call(0, "AllReduce", 1, "0xa", kind=44)], "line 2: data type 44 is unknown"),
        ([WORLD, call(0, "Scan", 1, "0xa")], "line 2: Scan is not one of AllReduce,"),
        ([WORLD, call(0, "Reduce", 1, "0xa", root=4)], "line 2: there is no rank 4 in the comm"),
        ([WORLD, call(0, "Reduce", 1, "0xa")[:90]], "line 2: the call is cut, or in an unknown"),
        ([init(0, "0xa", 2, 2, "commId 0x1")], "line 1: rank 2 of 2 can't be read"),
        (
            [init(0, "0xa", 0, 2, "commId 0x1"), call(0, "Reduce", 1, "0xa")],
            "rank 1 of 2 has no log",
        ),
        (
            [WORLD, init(3, "0xa", 0, 1, "commId 0x2"), call(0, "Reduce", 1, "0xa")],
            "is not in the communicator of 1 ranks",
        ),
        (
            [
                init(0, "0xa", 0, 2, ""), init(1, "0xa", 1, 2, ""), init(2, "0xa", 0, 2, ""),
                call(0, "Reduce", 1, "0xa"),
            ],
            "communicators can't be told apart: their lines have no commId",
        ),
    ],
)  # fmt: skip
def test_log_that_does_not_say_enough_is_refused(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, lines)
    assert message in str(caught.value)


def test_ranks_that_call_other_collectives_are_refused(tmp_path: Path) -> None:
    logs = [
        [init(rank, "0xa", rank, 2, "commId 0x1"), call(rank, name, 1, "0xa", ranks=2)]
        for rank, name in enumerate(("AllReduce", "AllGather"))
    ]
    with pytest.raises(TraceError, match="group world: ranks 0 and 1 call other collectives"):
        read(tmp_path, *logs)


def test_exchange_whose_sizes_differ_is_refused(tmp_path: Path) -> None:
    """Each rank receives one element less than the other one sends."""
    logs = [
        [
            init(rank, "0xa", rank, 2, "commId 0x1"),
            call(rank, "Send", 5, "0xa", root=1 - rank, ranks=2),
            call(rank, "Recv", 4, "0xa", root=1 - rank, ranks=2),
        ]
        for rank in (0, 1)
    ]
    with pytest.raises(TraceError, match="messages from rank 0 to 1 with tag 0 differ"):
        read(tmp_path, *logs)
