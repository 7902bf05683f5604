"""Execution graphs as PyTorch execution traces that PARAM's `comm_replay` replays.

A trace of this form is a program: operations start in one order and are waited for. The writer
takes the first order that the graph allows, and waits for a call before the first operation that
needs it. What the format can't say is left out: numbers, names of collectives, streams, and that
two computations may overlap. Computations are nodes with a `duration_s`, which PARAM ignores.
"""

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import count, islice, starmap
from pathlib import Path
from types import MappingProxyType
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
        self._numbers = count(1)
        self._requests = count(1)
        self._nodes: list[dict[str, Any]] = []
        self._calls = calls
        self._index = {
            node.number: n
            for group in graph.groups
            for n, node in enumerate(calls.get((group, rank), ()))
        }

    def document(self) -> dict[str, Any]:
        self._add(_PROCESS, parent=1)
        self._add(_THREAD, parent=1)
        self._add("## process_group:init ##", [("String", [], json.dumps(self._groups()))])
        ordered = _in_order(self.graph, self.rank)
        open_calls: dict[int, tuple[Node, int]] = {}
        for node in ordered:
            for number in node.after:
                if number in open_calls:
                    self._add_wait(*open_calls.pop(number))
            if node.kind == "compute":
                seconds = {"duration_s": float(node.duration_s)}
                self._add(node.name or "computation", extra=seconds)
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
                "ranks": [] if name == WORLD else list(self.graph.groups[name]),
                "group_size": len(self.graph.groups[name]),
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
        members = self.graph.groups[node.group]
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
        members = self.graph.groups[node.group]
        index = self._index[node.number]
        calls = [self._calls[node.group, rank][index] for rank in members]
        position = members.index(self.rank)
        return _parts(node, len(members)), [_parts(call, len(members))[position] for call in calls]

    def _add_communication(
        self, node: Node, request: int, name: str, put: list[int], taken: list[int], sent: int,
        received: int, peer: int,
    ) -> None:  # fmt: skip
        group = node.group if node.kind == "collective" else WORLD
        number, members = self.groups[group], self.graph.groups[group]
        splits = f"GenericList[{','.join(['Int'] * len(put))}]"
        values: list[tuple[str, Any, Any]] = [
            ("GenericList[Int,Bool]", [[], []], [request, node.kind != "collective"]),
            ("Tuple[String,String]", [[], []], [number, group]),
            ("Int", [], peer),
            ("String", [], name),
            (splits, [[] for _ in put], put),
            (splits, [[] for _ in taken], taken),
            ("Int", [], members[0]),
            ("Int", [], 1),
            ("Int", [], len(members)),
        ]
        moves = name not in {"wait", "barrier"}
        inputs, outputs = (
            [("Tensor(unsigned char)", [size], [tensor, tensor, 0, size, 1, "cuda:0"])] * moves
            for tensor, size in ((2 * request, sent), (2 * request + 1, received))
        )
        facts: dict[str, str | int] = {
            "collective_name": name,
            "dtype": "Byte",
            "in_msg_nelems": sent if moves else 0,
            "out_msg_nelems": received if moves else 0,
            "in_split_size": json.dumps(put),
            "out_split_size": json.dumps(taken),
            "global_rank_start": members[0],
            "global_rank_stride": 1,
            "pg_name": number,
            "pg_desc": group,
            "pg_size": len(members),
        }
        self._add("record_param_comms", [*inputs, *values], outputs, facts)

    def _add(
        self, name: str, inputs: _Values = (), outputs: _Values = (),
        extra: Mapping[str, str | int | float] = MappingProxyType({}), parent: int = 2,
    ) -> None:  # fmt: skip
        number = next(self._numbers)
        facts = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0}
        self._nodes.append(
            {
                "id": number,
                "name": name,
                "ctrl_deps": parent,
                "inputs": _columns(inputs),
                "outputs": _columns(outputs),
                "attrs": [*starmap(_attribute, ({**facts, "op_schema": "", **extra}).items())],
            }
        )


def _attribute(name: str, value: str | float) -> dict[str, Any]:
    kinds = {int: "int64" if name == "seq_id" else "uint64", float: "double", str: "string"}
    return {"name": name, "type": kinds[type(value)], "value": value}


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
    waits = [{place[number] for number in before} for before in graph.dependencies(rank).values()]
    last: dict[tuple[str, str | int], int] = {}
    tags: dict[tuple[str, int], int] = {}
    for n, node in enumerate(nodes):
        if (
            node.kind in {"send", "receive"}
            and tags.setdefault((node.kind, node.peer), node.tag) != node.tag
        ):
            fault = f"rank {rank}: messages with rank {node.peer} have several tags"
            raise SpecError([("", f"PyTorch execution traces can't express it: {fault}")])
        if node.kind != "compute":
            queue = node.kind, node.group if node.kind == "collective" else node.peer
            if queue in last:
                waits[n].add(last[queue])
            last[queue] = n
    sorter = TopologicalSorter(dict(enumerate(waits)))
    try:
        sorter.prepare()
    except CycleError as error:
        fault = f"rank {rank}: the order of collectives contradicts dependencies"
        raise SpecError([("", fault)]) from error
    ready = list[int]()
    while sorter.is_active():
        for n in sorter.get_ready():
            heapq.heappush(ready, n)
        first = heapq.heappop(ready)
        yield nodes[first]
        sorter.done(first)
