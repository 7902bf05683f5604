"""PARAM's basic traces of communication as graphs.

A file is a JSON list of the calls of one rank; sizes are elements of a data type. A call starts
at its `startTime_ns` at the earliest, as `comm_replay --use-timestamp` has it. Computations have
sizes but no times. Format: `_parseBasicTrace` in PARAM's `train/comms/pt/commsTraceParser.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from moefabric.core.errors import TraceError
from moefabric.traces import recorded_calls as recorded
from moefabric.traces.files import Entry, is_count, json_list, rank_files, read_json
from moefabric.traces.recorded_calls import RecordedCall
from moefabric.workload.graphs.execution_graph import WORLD, ExecutionGraph, Node

_UNTIMED: Final = "gemm and emb_lookup have sizes but no times: they take none"
_COMPUTATIONS: Final = frozenset({"gemm", "emb_lookup"})
_LIMIT: Final = 1 << 56
"""Bound of numbers of elements and ranks."""


class ParamBasicReader:
    """Reads the JSON lists that PARAM's commsTraceReplay takes, one for each rank."""

    name = "param-basic"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether a file is a list of objects with `comms` or `compute`."""
        keys = (b'"comms"', b'"compute"')
        return head.lstrip()[:1] == b"[" and any(key in head for key in keys)

    def read(self, path: Path) -> ExecutionGraph:
        """Read the files of all ranks."""
        files = rank_files(path)
        ranks = {rank: _Rank(file) for rank, file in files.items()}
        world = max([len(ranks), *(rank.world for rank in ranks.values())])
        everybody = tuple(range(world))
        groups: dict[str, tuple[int, ...]] = {}
        nodes: dict[int, tuple[Node, ...]] = {}
        for number, rank in ranks.items():
            known = {name: of for name, of in rank.groups.items() if of != everybody}
            groups |= known
            nodes[number] = _timed(
                [
                    call if call.node.group in known else _in_world(call, rank, world)
                    for call in rank.calls
                ],
                rank.starts_s,
            )
        notes = [_UNTIMED] if any(rank.computes for rank in ranks.values()) else []
        return recorded.job_graph(path, nodes, world, groups, notes)


def _in_world(call: RecordedCall, rank: "_Rank", world: int) -> RecordedCall:
    size = rank.sizes.get(call.node.group, world)
    if size != world and call.node.kind == "collective":
        fault = f"group {call.node.group} has {size} ranks, but global_ranks are missing"
        raise TraceError(rank.path, f"[{call.node.number}]", fault)
    return replace(call, node=replace(call.node, group=WORLD))


def _timed(calls: Sequence[RecordedCall], starts_s: dict[int, float]) -> tuple[Node, ...]:
    """Return the operations, which a chain of delays keeps from starting before their times."""
    nodes: list[Node] = []
    number = max((call.node.number for call in calls), default=-1)
    elapsed_s, delay = 0.0, tuple[int, ...]()
    for node in recorded.ordered_nodes(calls):
        start_s = starts_s.get(node.number)
        if start_s is None:
            nodes.append(node)
            continue
        if start_s > elapsed_s:
            number += 1
            nodes.append(Node(number, "compute", "start", delay, start_s - elapsed_s))
            elapsed_s, delay = start_s, (number,)
        nodes.append(replace(node, after=(*node.after, *delay)))
    return tuple(nodes)


class _Rank:
    """Calls of one file.

    Attributes:
        calls: Communication and computation in program order.
        starts_s: Seconds from the first call to each call that has a time, by its number.
        groups: Ranks of the groups that the file lists.
        sizes: Numbers of ranks of groups.
        world: Number of ranks of the job, as far as the file says.
        computes: Whether there is computation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[RecordedCall] = []
        self.starts_s: dict[int, float] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}
        self.world, self.computes = 0, False
        first: float | None = None
        for number, values in enumerate(json_list(path, read_json(path), "", "calls")):
            call = self._call(number, Entry(path, f"[{number}]", values))
            if call is None:
                continue
            self.calls.append(call)
            start = values.get("startTime_ns")
            if isinstance(start, int | float) and 0 <= start < 1 << 63:
                first = start if first is None else first
                self.starts_s[number] = max(0.0, (start - first) / 1e9)

    def _call(self, number: int, entry: Entry) -> RecordedCall | None:
        values = entry.values
        if "comms" not in values:
            computation = str(values.get("compute")).lower()
            if computation not in _COMPUTATIONS:
                raise entry.error("has neither comms nor a known compute")
            self.computes = True
            return RecordedCall(Node(number, "compute", computation))
        name = str(values["comms"]).lower()
        group = self._group(entry)
        if name == "batch_isend_irecv":
            return None
        kind = recorded.call_kind(name)
        if kind is None:
            raise entry.error(f"{name!r} is not known", "comms")
        if kind == "init":
            return None
        request = values.get("req")
        if isinstance(request, list) and request:
            request = request[0]
        named = (group, request) if isinstance(request, int) else None
        if kind == "wait":
            return RecordedCall(Node(number, "compute"), named, waits=True)
        if kind == "send" or kind == "receive":  # noqa: PLR1714 - mypy narrows by these
            sends = kind == "send"
            size = _width(entry) * entry.count("in_msg_size" if sends else "out_msg_size", _LIMIT)
            peer = entry.count("dst_rank" if sends else "src_rank", _LIMIT)
            return RecordedCall(Node(number, kind, name, size=size, peer=peer), named)
        root = entry.count("root", _LIMIT) if values.get("root") is not None else 0
        node = Node(number, "collective", name, collective=kind, group=group, root=root)
        if kind != "barrier":
            of_output = kind == "scatter"
            key = "out_msg_size" if of_output else "in_msg_size"
            parts = self.sizes.get(group, 1) if of_output else 1
            node = replace(node, size=_width(entry) * entry.count(key, _LIMIT) * parts)
        if kind == "all_to_all" and values.get("in_split"):
            node = replace(node, splits=_splits(entry, node.size))
        return RecordedCall(node, named)

    def _group(self, entry: Entry) -> str:
        """Return the name of a call's group, and record the ranks that the call gives for it."""
        group, ranks = str(entry.values.get("pg_id", WORLD)), entry.values.get("global_ranks")
        if ranks:
            if not recorded.are_ranks(ranks):
                raise entry.error("is no list of ranks", "global_ranks")
            self.groups[group] = tuple(ranks)
            self.world = max(self.world, *(rank + 1 for rank in ranks))
        size = entry.values.get("world_size", len(ranks) if ranks else 0)
        if size is None:
            return group
        if not is_count(size, recorded.MAX_RANKS):
            raise entry.error(f"{size!r} is no number of ranks", "world_size")
        if size:
            self.sizes[group] = size
            self.world = max(self.world, size)
        return group


def _width(entry: Entry) -> int:
    """Return the bytes of an element."""
    kind = entry.values.get("dtype")
    width = recorded.TYPE_BYTES.get(str(kind).lower())
    if width is None:
        raise entry.error(f"{kind!r} is no data type that is known", "dtype")
    return width


def _splits(entry: Entry, size: int) -> tuple[int, ...]:
    splits = entry.values["in_split"]
    if not isinstance(splits, list) or not all(is_count(one, _LIMIT) for one in splits):
        raise entry.error("a list of numbers of elements is needed", "in_split")
    parts = tuple(_width(entry) * one for one in splits)
    if sum(parts) != size:
        raise entry.error(f"{sum(splits)} elements are not in_msg_size", "in_split")
    return parts if len(set(parts)) > 1 else ()
