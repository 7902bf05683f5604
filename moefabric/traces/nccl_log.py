"""NCCL's debug logs: the calls of each rank, from `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL`.

    h0:7:7 [0] NCCL INFO ncclCommInitRank comm 0x5a0 rank 0 nranks 8 .. commId 0x9f1 - Init COMPLETE
    h0:7:7 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x1 count 512 datatype 7 op 0
    root 0 comm 0x5a0 [nranks=8] stream 0x77

(the call is one line). One log of all processes and a folder of their logs
(`NCCL_DEBUG_FILE=nccl.%h.%p.log`) are read alike. `INIT` lines say which rank a communicator is,
and which communicators of several ranks are one: those of equal `commId`, or split from the same
one alike. Times are not in logs, so that nothing lies between the calls of a stream.

Sends and receives of a communicator that follow each other with one `opCount` are a group, as
NCCL's all-to-all is. If each rank of the communicator sends to and receives from all others, they
are read as one all-to-all.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from moefabric.core.errors import TraceError
from moefabric.traces.files import read_text
from moefabric.traces.formats import checked_graph
from moefabric.workload.graphs.execution_graph import (
    ROOTED,
    WORLD,
    CollectiveKind,
    ExecutionGraph,
    Node,
    NodeKind,
)

_ELEMENT_BYTES: Final = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of NCCL's data types: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64,
bfloat16, float8e4m3, float8e5m2."""
_COLLECTIVES: Final[dict[str, CollectiveKind]] = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}
_MESSAGES: Final = ("Send", "Recv")
_COUNT_OF_A_PART: Final = {"reduce_scatter", "all_to_all", "scatter"}
"""Collectives whose count is that of one rank's part."""
MAX_CALLS: Final = 2_000_000
MAX_RANKS: Final = 1 << 16
_NO_TIMES: Final = (
    "NCCL logs no times: the calls of a CUDA stream follow each other without computation, and "
    "those of different streams don't wait for each other."
)
_EXCHANGES: Final = "Grouped sends and receives among all ranks of a communicator are all-to-alls."

_PROCESS: Final = r"(?P<process>[^\s:]{1,256}:\d{1,12}):\d{1,12} \[\d{1,4}\] NCCL INFO "
_INIT: Final = re.compile(
    _PROCESS
    + r"(?:\w+ )?comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d{1,9}) nranks (?P<ranks>\d{1,9}) "
    r"(?P<rest>.*)- Init COMPLETE"
)
_CALL: Final = re.compile(
    _PROCESS + r"(?P<name>\w+): opCount (?P<op>[0-9a-f]+) sendbuff \S+ recvbuff \S+ "
    r"count (?P<count>\d{1,18}) datatype (?P<type>\d{1,3}) op \d+ root (?P<root>\d{1,9}) "
    r"comm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<ranks>\d{1,9})\] stream (?P<stream>\S+)"
)
_WORDS: Final = {
    word: re.compile(rf"\b{word} (\S+)")
    for word in ("commId", "busId", "cudaDev", "parent", "splitCount", "color")
}


class NcclLogReader:
    """Reads NCCL's debug logs."""

    name = "nccl-log"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether some of the first lines are NCCL's."""
        return b" NCCL INFO " in head

    def read(self, path: Path) -> ExecutionGraph:
        """Read a log, or all logs of a folder or with a prefix."""
        logs = _Logs()
        for file in log_files(path):
            logs.read_file(file)
        return logs.graph(path)


def log_files(path: Path) -> list[Path]:
    """Return a file, or the files in a folder or with a prefix, in the order of their names."""
    if path.is_file():
        return [path]
    folder, prefix = (path, "") if path.is_dir() else (path.parent, path.name)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    logs = [file for file in files if file.is_file() and file.name.startswith(prefix)]
    if not logs:
        raise TraceError(path, "", "there are no such files")
    return logs


_Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Communicator:
    """A communicator of one GPU: the group that it is part of, and its rank there."""

    group: str
    rank: int
    ranks: int
    gpu: str


@dataclass(frozen=True, slots=True)
class _Call:
    """A call as a log has it; `peer` is the root or the other rank, in the communicator."""

    name: str
    op: str
    size: int
    peer: int
    communicator: _Communicator
    stream: str

    @property
    def is_message(self) -> bool:
        return self.name in _MESSAGES


@dataclass
class _Logs:
    """The lines of all files so far."""

    communicators: dict[tuple[str, str], _Communicator] = field(default_factory=dict)
    """By (process, address), the last one that had the address."""
    known: dict[_Communicator, None] = field(default_factory=dict)
    calls: defaultdict[str, list[_Call]] = field(default_factory=lambda: defaultdict(list))
    """By GPU."""
    count: int = 0

    def read_file(self, file: Path) -> None:
        """Add the lines of a file."""
        for number, line in enumerate(read_text(file).splitlines(), start=1):
            if " NCCL INFO " not in line:
                continue
            place = f"line {number}"
            if match := _INIT.search(line):
                self._add_communicator(match, file, place)
            elif match := _CALL.search(line):
                self._add_call(match, file, place)
            elif ": opCount " in line:
                raise TraceError(file, place, "the call is cut, or in an unknown form")

    def _add_communicator(self, match: re.Match[str], file: Path, place: str) -> None:
        process, rank, ranks = match["process"], int(match["rank"]), int(match["ranks"])
        if not rank < ranks <= MAX_RANKS:
            raise TraceError(file, place, f"rank {rank} of {ranks} can't be read")
        words = {name: word[1] for name, text in _WORDS.items() if (word := text.search(match[0]))}
        parent = self.communicators.get((process, words.get("parent", "")))
        group = words.get("commId", f"all {ranks}")
        if parent is not None and "commId" not in words:
            split = words.get("splitCount", "0"), words.get("color", "0")
            group = f"{parent.group}/{'/'.join(split)}"
        gpu = f"{process} {words.get('busId') or words.get('cudaDev', '0')}"
        communicator = _Communicator(group, rank, ranks, gpu)
        self.communicators[process, match["comm"]] = communicator
        self.known[communicator] = None

    def _add_call(self, match: re.Match[str], file: Path, place: str) -> None:
        self.count += 1
        if self.count > MAX_CALLS:
            raise TraceError(file, place, f"more than {MAX_CALLS} calls can't be read")
        communicator = self.communicators.get((match["process"], match["comm"]))
        if communicator is None:
            message = f"communicator {match['comm']} is not initialised before: log INIT too"
            raise TraceError(file, place, message)
        kind, peer, name = int(match["type"]), int(match["root"]), match["name"]
        if kind >= len(_ELEMENT_BYTES):
            raise TraceError(file, place, f"data type {kind} is unknown")
        if name not in _COLLECTIVES and name not in _MESSAGES:
            known = ", ".join((*_COLLECTIVES, *_MESSAGES))
            raise TraceError(file, place, f"{name} is not one of {known}")
        if peer >= communicator.ranks:
            raise TraceError(file, place, f"there is no rank {peer} in the communicator")
        size = int(match["count"]) * _ELEMENT_BYTES[kind]
        if _COLLECTIVES.get(name) in _COUNT_OF_A_PART:
            size *= communicator.ranks
        call = _Call(name, match["op"], size, peer, communicator, match["stream"])
        self.calls[communicator.gpu].append(call)

    def graph(self, path: Path) -> ExecutionGraph:
        """Return the graph of all calls."""
        if not self.calls:
            raise TraceError(path, "", "there are no calls: set NCCL_DEBUG_SUBSYS=INIT,COLL")
        largest = max(self.known, key=lambda comm: comm.ranks)
        members = self._members(path, largest.group)
        world = members[largest.group]
        if len(world) < largest.ranks:
            missing = next(rank for rank in range(largest.ranks) if rank not in world)
            raise TraceError(path, "", f"rank {missing} of {largest.ranks} has no log")
        ranks = {gpu: rank for rank, gpu in world.items()}
        used = {call.communicator.group for calls in self.calls.values() for call in calls}
        groups: dict[str, tuple[str, _Ranks]] = {}
        for group, gpus in members.items():
            if strange := [gpu for gpu in gpus.values() if gpu not in ranks]:
                message = f"{strange[0]} is not in the communicator of {len(ranks)} ranks"
                raise TraceError(path, "", message)
            if group in used:
                name = WORLD if group == largest.group else f"comm{len(groups)}"
                groups[group] = name, tuple(ranks[gpus[rank]] for rank in sorted(gpus))
        calls = {rank: self.calls[gpu] for gpu, rank in ranks.items()}
        splits = _exchange_splits(calls.values())
        nodes = {rank: tuple(_rank_nodes(log, splits, groups)) for rank, log in calls.items()}
        notes = [_NO_TIMES, *([_EXCHANGES] if splits else [])]
        named = dict(groups.values())
        graph = ExecutionGraph(dict(sorted(nodes.items())), named, path.name, tuple(notes))
        return checked_graph(graph, path)

    def _members(self, path: Path, largest: str) -> dict[str, dict[int, str]]:
        """Return the GPU of each rank of each group."""
        members: defaultdict[str, dict[int, str]] = defaultdict(dict)
        # Faults of the largest group are reported first.
        for comm in sorted(self.known, key=lambda comm: comm.group != largest):
            if members[comm.group].setdefault(comm.rank, comm.gpu) != comm.gpu:
                message = "communicators can't be told apart: their lines have no commId"
                raise TraceError(path, "", message)
        return {group: members[group] for group in dict.fromkeys(comm.group for comm in self.known)}


_Splits = Mapping[tuple[_Communicator, int], tuple[int, ...]]
"""Bytes to each rank by communicator and number of an all-to-all of grouped messages."""


def _exchange_splits(ranks: Iterable[Sequence[_Call]]) -> _Splits:
    """Return the groups of sends and receives that are all-to-alls.

    The n-th group of each rank of a communicator belongs to the same exchange if each message that
    one of them sends is received in another, and most pairs have a message.
    """
    splits: dict[tuple[_Communicator, int], tuple[int, ...]] = {}
    by_group: defaultdict[str, dict[_Communicator, list[Sequence[_Call]]]] = defaultdict(dict)
    for calls in ranks:
        for batch in batches(calls):
            if batch[0].is_message:
                comm = batch[0].communicator
                by_group[comm.group].setdefault(comm, []).append(batch)
    for communicators in by_group.values():
        ordered = sorted(communicators, key=lambda comm: comm.rank)
        counts = {len(groups) for groups in communicators.values()}
        if len(counts) == 1 and len(ordered) == ordered[0].ranks:
            exchanges = zip(*(communicators[comm] for comm in ordered), strict=True)
            for index, exchange in enumerate(exchanges):
                rows = _exchanged(exchange)
                splits |= {(comm, index): row for comm, row in zip(ordered, rows, strict=False)}
    return splits


def _exchanged(exchange: Sequence[Sequence[_Call]]) -> list[tuple[int, ...]]:
    """Return the bytes [rank][rank] of a group of messages; nothing if it is no all-to-all."""
    count = len(exchange)
    sent, received = np.zeros((2, count, count), dtype=object)
    for rank, batch in enumerate(exchange):
        for call in batch:
            if call.name == "Send":
                sent[rank, call.peer] += call.size
            else:
                received[call.peer, rank] += call.size
    pairs = np.count_nonzero(sent) - np.count_nonzero(sent.diagonal())
    alike = (sent == received).all() and 2 * pairs > count * (count - 1)
    return [tuple(row) for row in sent] if alike else []


def batches(calls: Sequence[_Call]) -> Iterator[Sequence[_Call]]:
    """Yield the calls of a GPU, with grouped sends and receives together."""

    def key(place: int) -> object:
        call = calls[place]
        return (call.communicator, call.op, call.stream) if call.is_message else place

    for _, places in groupby(range(len(calls)), key):
        yield [calls[place] for place in places]


def _rank_nodes(
    calls: Sequence[_Call], exchange_splits: _Splits, groups: Mapping[str, tuple[str, _Ranks]]
) -> Iterator[Node]:
    """Yield the operations of one rank, given the name and ranks of each group.

    Those of a stream follow each other.
    """
    number = 0
    streams: dict[str, int] = {}
    last: dict[int, tuple[int, ...]] = {}
    index: defaultdict[str, int] = defaultdict(int)
    for batch in batches(calls):
        first = batch[0]
        name, members = groups[first.communicator.group]
        stream = streams.setdefault(first.stream, len(streams))
        after = last.get(stream, ())
        splits: tuple[int, ...] = ()
        if first.is_message:
            splits = exchange_splits.get((first.communicator, index[name]), ())
            index[name] += 1
        if not first.is_message or splits:
            collective = _COLLECTIVES.get(first.name, "all_to_all")
            yield Node(
                number, "collective", first.name if not splits else "AlltoAll", after,
                size=sum(splits) if splits else first.size, collective=collective, group=name,
                splits=splits, root=members[first.peer] if collective in ROOTED else 0,
                stream=stream,
            )  # fmt: skip
            last[stream], number = (number,), number + 1
            continue
        messages = []
        for call in batch:
            if call.peer == call.communicator.rank:
                continue
            kind: NodeKind = "send" if call.name == "Send" else "receive"
            peer = members[call.peer]
            yield Node(number, kind, call.name, after, size=call.size, peer=peer)
            messages.append(number)
            number += 1
        last[stream] = tuple(messages) or after
