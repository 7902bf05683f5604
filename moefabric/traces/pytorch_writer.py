"""Execution graphs as PyTorch execution traces that PARAM's `comm_replay` replays.

A trace of this form is a program: operations start in one order and are waited for. The writer
takes the first order that the graph allows, and waits for a call before the first operation that
needs it. What the format can't say is left out: numbers, names of collectives, streams, and that
two computations may overlap. Computations are nodes with a `duration_s`, which PARAM ignores.
"""

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import SpecError
from moefabric.runtime.atomic_file import write_whole
from moefabric.traces.formats import group_numbers
from moefabric.workload.graphs.execution_graph import WORLD, CollectiveKind, ExecutionGraph, Node

SCHEMA: Final = "1.1.1-chakra.0.0.4"

_CALLS: Final[Mapping[CollectiveKind, str]] = {
    "all_to_all": "all_to_allv",
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
_PROCESS: Final = "[pytorch|profiler|execution_trace|process]"
_THREAD: Final = "[pytorch|profiler|execution_trace|thread]"
_Values = Sequence[tuple[str, Any, Any]]
"""Type, shape and value of each input or output."""
_Calls = Mapping[tuple[str, int], Sequence[Node]]
"""Collectives by group and rank."""


class PytorchExecutionWriter:
    """Writes a JSON file for each rank into a folder."""

    name = "pytorch-et"

    def write(self, graph: ExecutionGraph, path: Path) -> None:
        """Write `PATH/rank-RANK.json` for all ranks.

        Args:
            graph: The operations of all ranks, without faults.
            path: The folder; it is made if it isn't there.

        Raises:
            SpecError: If the graph has faults, or the format can't express it.
        """
        if faults := list(islice(graph.faults(), 5)):
            raise SpecError([("", fault) for fault in faults])
        for name, members in graph.groups.items():
            if list(members) != sorted(members):
                fault = f"PyTorch orders the ranks of a group, group {name} is {members}"
                raise SpecError([("", fault)])
        calls = _calls(graph)
        documents = {rank: _Program(graph, rank, calls).document() for rank in graph.ranks}
        path.mkdir(parents=True, exist_ok=True)
        for rank, document in documents.items():
            write_whole(path / f"rank-{rank}.json", json.dumps(document) + "\n")


class _Program:
    """The program of one rank."""

    def __init__(self, graph: ExecutionGraph, rank: int, calls: "_Calls") -> None:
        self.graph, self.rank = graph, rank
        self.groups = {WORLD: "0"} | group_numbers(graph)
        self.members = dict(graph.groups)
        self._numbers = count(3)
        self._requests = count(1)
        self._nodes: list[dict[str, Any]] = []
        self._calls = calls
        self._index = {
            node.number: n
            for group in graph.groups
            for n, node in enumerate(calls.get((group, rank), ()))
        }

    def document(self) -> dict[str, Any]:
        self._add(_PROCESS, number=1, parent=1)
        self._add(_THREAD, number=2, parent=1)
        self._add("## process_group:init ##", [("String", [], json.dumps(self._groups()))])
        ordered = _in_order(self.graph, self.rank)
        open_calls: dict[int, tuple[Node, int]] = {}
        for node in ordered:
            for number in node.after:
                if number in open_calls:
                    self._add_wait(*open_calls.pop(number))
            if node.kind == "compute":
                seconds = {"name": "duration_s", "type": "double", "value": node.duration_s}
                self._add(node.name or "computation", extra=[seconds])
            else:
                open_calls[node.number] = (node, self._add_call(node))
        for node, request in open_calls.values():
            self._add_wait(node, request)
        return {
            "schema": SCHEMA,
            "pid": self.rank + 1,
            "time": "1970-01-01 00:00:00",
            "start_ts": 0,
            "group_names": {number: name for name, number in self.groups.items()},
            "nodes": self._nodes,
            "finish_ts": 0,
        }

    def _groups(self) -> list[dict[str, Any]]:
        return [
            {
                "pg_name": number,
                "pg_desc": name,
                "backend_config": "cuda:nccl",
                "ranks": [] if name == WORLD else list(self.members[name]),
                "group_size": len(self.members[name]),
                "group_count": len(self.groups),
            }
            for name, number in self.groups.items()
        ]

    def _add_wait(self, node: Node, request: int) -> None:
        self._add_communication(node, request, "wait", [], [], 0, 0, self.rank)

    def _add_call(self, node: Node) -> int:
        request = next(self._requests)
        if node.kind != "collective" or node.collective is None:
            name = "send" if node.kind == "send" else "recv"
            self._add_communication(node, request, name, [], [], node.size, node.size, node.peer)
            return request
        members = self.members[node.group]
        sent, received, put, taken = node.size, node.size, list[int](), list[int]()
        if node.collective == "all_to_all":
            put, taken = self._splits(node)
            received = sum(taken)
        elif node.collective in {"all_gather", "gather"}:
            received = node.size * len(members)
        elif node.collective in {"reduce_scatter", "scatter"}:
            received = _share(node, len(members))
        rooted = node.collective in {"broadcast", "reduce", "gather", "scatter"}
        peer = members.index(node.root if rooted else self.rank)
        name = _CALLS[node.collective]
        self._add_communication(node, request, name, put, taken, sent, received, peer)
        return request

    def _splits(self, node: Node) -> tuple[list[int], list[int]]:
        """Return the bytes that an all-to-all sends to and takes from each rank of its group."""
        members = self.members[node.group]
        index = self._index[node.number]
        calls = [self._calls[node.group, rank][index] for rank in members]
        own = members.index(self.rank)
        return _parts(node, len(members)), [_parts(call, len(members))[own] for call in calls]

    def _add_communication(
        self, node: Node, request: int, name: str, put: list[int], taken: list[int], sent: int,
        received: int, peer: int,
    ) -> None:  # fmt: skip
        group = node.group if node.kind == "collective" else WORLD
        number = self.groups[group]
        size = len(self.members[group])
        splits = f"GenericList[{','.join(['Int'] * len(put))}]"
        values: list[tuple[str, Any, Any]] = [
            ("GenericList[Int,Bool]", [[], []], [request, node.kind != "collective"]),
            ("Tuple[String,String]", [[], []], [number, group]),
            ("Int", [], peer),
            ("String", [], name),
            (splits, [[] for _ in put], put),
            (splits, [[] for _ in taken], taken),
            ("Int", [], self.members[group][0]),
            ("Int", [], 1),
            ("Int", [], size),
        ]
        moves = name not in {"wait", "barrier"}
        tensors = [(_tensor(2 * request), sent), (_tensor(2 * request + 1), received)]
        inputs, outputs = ([_input(*one)] if moves else [] for one in tensors)
        facts: dict[str, str | int] = {
            "collective_name": name,
            "dtype": "Byte",
            "in_msg_nelems": sent if moves else 0,
            "out_msg_nelems": received if moves else 0,
            "in_split_size": json.dumps(put),
            "out_split_size": json.dumps(taken),
            "global_rank_start": self.members[group][0],
            "global_rank_stride": 1,
            "pg_name": number,
            "pg_desc": group,
            "pg_size": size,
        }
        extra = [
            {"name": key, "type": "string" if isinstance(value, str) else "uint64", "value": value}
            for key, value in facts.items()
        ]
        self._add("record_param_comms", [*inputs, *values], outputs, extra)

    def _add(
        self, name: str, inputs: _Values = (), outputs: _Values = (),
        extra: Sequence[dict[str, Any]] = (), number: int | None = None, parent: int = 2,
    ) -> None:  # fmt: skip
        number = next(self._numbers) if number is None else number
        facts = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0}
        attributes = [
            {"name": key, "type": "int64" if key == "seq_id" else "uint64", "value": value}
            for key, value in facts.items()
        ]
        attributes.append({"name": "op_schema", "type": "string", "value": ""})
        self._nodes.append(
            {
                "id": number,
                "name": name,
                "ctrl_deps": parent,
                "inputs": _columns(inputs),
                "outputs": _columns(outputs),
                "attrs": [*attributes, *extra],
            }
        )


def _tensor(number: int) -> list[int | str]:
    """Return a tensor's number, storage, offset, and the rest to be filled in."""
    return [number, number, 0]


def _input(tensor: list[int | str], size: int) -> tuple[str, Any, Any]:
    return "Tensor(unsigned char)", [size], [*tensor, size, 1, "cuda:0"]


def _columns(values: _Values) -> dict[str, list[Any]]:
    return {
        "values": [value for _, _, value in values],
        "shapes": [shape for _, shape, _ in values],
        "types": [kind for kind, _, _ in values],
        "strides": [[1] if kind.startswith("Tensor") else [] for kind, _, _ in values],
    }


def _parts(node: Node, ranks: int) -> list[int]:
    """Return the bytes to each rank; a remainder of equal parts goes to the first ranks."""
    if node.splits:
        return list(node.splits)
    return [node.size // ranks + (n < node.size % ranks) for n in range(ranks)]


def _share(node: Node, ranks: int) -> int:
    if node.size % ranks:
        fault = f"operation {node.number}: {node.size} bytes are no equal parts for {ranks} ranks"
        raise SpecError([("", f"PyTorch execution traces can't express it: {fault}")])
    return node.size // ranks


def _calls(graph: ExecutionGraph) -> _Calls:
    """Return the collectives of each group on each rank, in their order."""
    calls: dict[tuple[str, int], list[Node]] = {}
    for rank, nodes in graph.ranks.items():
        for node in nodes:
            if node.kind == "collective":
                calls.setdefault((node.group, rank), []).append(node)
    return calls


def _in_order(graph: ExecutionGraph, rank: int) -> Iterator[Node]:
    """Yield the operations of a rank in the first order that starts each after what it waits for.

    Collectives of a group, messages with a rank and operations of a stream keep their order.
    """
    nodes = graph.ranks[rank]
    place = {node.number: n for n, node in enumerate(nodes)}
    waits = [{place[number] for number in node.after} for node in nodes]
    last: dict[tuple[str, object], int] = {}
    tags: dict[tuple[str, int], int] = {}
    for n, node in enumerate(nodes):
        if (
            node.kind in {"send", "receive"}
            and tags.setdefault((node.kind, node.peer), node.tag) != node.tag
        ):
            fault = f"rank {rank}: messages with rank {node.peer} have several tags"
            raise SpecError([("", f"PyTorch execution traces can't express it: {fault}")])
        queue = node.group if node.kind == "collective" else node.peer
        queues = [(node.kind, queue)] if node.kind != "compute" else []
        for key in [*queues, *([("stream", node.stream)] if node.stream >= 0 else [])]:
            if key in last:
                waits[n].add(last[key])
            last[key] = n
    followers: dict[int, list[int]] = {}
    for n, before in enumerate(waits):
        for one in before:
            followers.setdefault(one, []).append(n)
    left = [len(before) for before in waits]
    ready = [n for n, missing in enumerate(left) if not missing]
    started = 0
    while ready:
        n = heapq.heappop(ready)
        started += 1
        yield nodes[n]
        for follower in followers.get(n, ()):
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, follower)
    if started < len(nodes):
        raise SpecError([("", f"rank {rank}: the order of collectives contradicts dependencies")])
