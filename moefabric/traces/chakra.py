"""Chakra execution traces as execution graphs, and back.

A trace has a file for each rank, `PREFIX.RANK.et`, and its process groups in a JSON file beside
them, as ASTRA-sim's `--comm-group-configuration`, or in metadata nodes. The format has no
all-to-all with unequal parts and no streams; both are attributes of this project
(`send_splits`, `root`, `stream`, `duration_s`), which other tools ignore.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from moefabric.core.errors import SpecError, TraceError
from moefabric.runtime.atomic_file import write_whole
from moefabric.traces import chakra_schema as schema
from moefabric.traces.files import rank_files, read_bytes, read_json
from moefabric.traces.formats import group_numbers
from moefabric.workload.graphs.execution_graph import WORLD, CollectiveKind, ExecutionGraph, Node

_KINDS: Final[tuple[CollectiveKind, ...]] = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
    "reduce_scatter", "reduce_scatter", "barrier",
)  # fmt: skip
"""Collectives by `comm_type`."""
_COMM_TYPES: Final = {kind: _KINDS.index(kind) for kind in _KINDS}
_NO_GROUP: Final = frozenset({"", "0", "empty"})
"""Names that stand for all ranks unless a group has them."""
_GROUP_FILES: Final = ("groups.json", "comm_groups.json", "comm_group.json")
_HOST_COPY: Final = (
    "collectives on the host side and those without comm_type are computation of their duration"
)
_CALL_STACK: Final = "control dependencies are PyTorch's call stack and order nothing"


class ChakraReader:
    """Reads the files of protobuf messages that ASTRA-sim takes."""

    name = "chakra"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether a file begins with the message `GlobalMetadata`."""
        return schema.is_metadata(head)

    def read(self, path: Path) -> ExecutionGraph:
        """Read the files of all ranks."""
        files = rank_files(path)
        sources = {rank: _source(file) for rank, file in files.items()}
        groups = _groups_of_file(path, next(iter(files.values())), len(files))
        named_numbers: dict[Any, None] = {}  # of each file, which has all of them
        title, notes = path.name, list[str]()
        for source in sources.values():
            facts = schema.attribute_values(source.metadata)
            title = str(facts.get("moefabric_name", title))
            named_numbers |= dict.fromkeys(_list(facts.get("moefabric_groups", ())))
            notes += [str(note) for note in _list(facts.get("moefabric_notes", ()))]
            for name, members in _groups_of_metadata(source, len(files)):
                groups.setdefault(name, members)
        names, known = dict(_pairs(tuple(named_numbers))), frozenset(groups)
        ranks: dict[int, tuple[Node, ...]] = {}
        for rank in files:
            source = sources.pop(rank)  # frees its messages
            nodes = _Rank(source, known, names)
            ranks[rank] = nodes.nodes()
            notes += nodes.notes
        named = {names.get(name, name): members for name, members in groups.items()}
        return ExecutionGraph(ranks, named, title, tuple(dict.fromkeys(notes)))


@dataclass(frozen=True)
class _Source:
    """The messages of a rank's file."""

    path: Path
    metadata: Any
    nodes: Sequence[Any]


def _source(path: Path) -> _Source:
    try:
        metadata, *nodes = schema.decoded(read_bytes(path))
    except schema.DamagedMessageError as error:
        place = f"nodes[{error.number - 1}]" if error.number else "GlobalMetadata"
        raise TraceError(path, place, error.reason) from error
    return _Source(path, metadata, nodes)


def _list(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _pairs(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the numbers of groups in the files with their names, from `number=name`."""
    for entry in _list(value):
        number, _, name = str(entry).partition("=")
        yield number, name


def _groups_of_file(path: Path, first: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    """Return the groups of the JSON file beside a trace; nothing without such a file."""
    prefix = first.name.partition(".")[0]
    candidates = [first.parent / f"{path.name}.groups.json", first.parent / f"{prefix}.groups.json"]
    candidates += [first.parent / name for name in _GROUP_FILES]
    for file in candidates:
        if file.is_file():
            document = read_json(file)
            if not isinstance(document, dict):
                raise TraceError(file, "", "an object of groups and their ranks is needed")
            return {name: _members(file, name, of, ranks) for name, of in document.items()}
    return {}


def _members(path: Path, name: str, members: Any, ranks: int) -> tuple[int, ...]:
    if not isinstance(members, list) or not all(isinstance(member, int) for member in members):
        raise TraceError(path, name, "a list of ranks is needed")
    return tuple(members) if members else tuple(range(ranks))


def _groups_of_metadata(source: _Source, ranks: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the groups of nodes that hold PyTorch's configuration of process groups."""
    for node in source.nodes:
        if node.type != schema.METADATA or "pg_name" not in node.inputs.values:
            continue
        for group in _configuration(node.inputs.values):
            if isinstance(group, dict) and isinstance(group.get("ranks"), list):
                name = str(group.get("pg_name"))
                yield name, _members(source.path, f"group {name}", group["ranks"], ranks)


def _configuration(literal: str) -> list[Any]:
    """Return the list in a text that is JSON, or JSON in a list of Python strings."""
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(literal)
            if isinstance(value, list) and value and isinstance(value[0], str):
                value = json.loads(value[0])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, list):
            return value
    return []


class _Rank:
    """Operations of a rank."""

    def __init__(self, source: _Source, groups: frozenset[str], names: Mapping[str, str]) -> None:
        self.source, self.groups, self.names = source, groups, names
        self.notes: list[str] = []
        self.numbers = {node.id for node in source.nodes}
        self.calls = any(fact.name == "rf_id" for node in source.nodes for fact in node.attr)
        if self.calls and any(node.ctrl_deps for node in source.nodes):
            self.notes.append(_CALL_STACK)

    def nodes(self) -> tuple[Node, ...]:
        numbers: set[int] = set()
        operations = []
        for index, node in enumerate(self.source.nodes):
            message = _Message(self, index, node)
            if node.id in numbers:
                raise message.error("another node has this number, too")
            numbers.add(node.id)
            operations.append(message.operation())
        return self._in_order(tuple(operations))

    def _in_order(self, operations: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return operations without streams if the order of the file contradicts dependencies."""
        alone = ExecutionGraph({0: operations})
        if any(operation.stream >= 0 for operation in operations) and any(alone.order_faults(0)):
            self.notes.append("streams are left out: they contradict the dependencies")
            return tuple(replace(operation, stream=-1) for operation in operations)
        return operations


class _Message:
    """The message of an operation, with its attributes."""

    def __init__(self, rank: _Rank, index: int, node: Any) -> None:
        self.rank, self.index, self.node = rank, index, node
        self.facts = schema.attribute_values(node)

    def error(self, fault: str) -> TraceError:
        place = f"nodes[{self.index}] (node {self.node.id})"
        return TraceError(self.rank.source.path, place, fault)

    def operation(self) -> Node:
        node, kind = self.node, self.node.type
        operation = Node(
            node.id, "compute", node.name, self._after(), self._duration(),
            stream=self._count("stream", -1),
        )  # fmt: skip
        host = bool(self.facts.get("is_cpu_op", False))
        if kind in {schema.SEND, schema.RECEIVE} and not host:
            sends = kind == schema.SEND
            return replace(
                operation,
                kind="send" if sends else "receive",
                size=self._count("comm_size"),
                peer=self._count("comm_dst" if sends else "comm_src"),
                tag=self._count("comm_tag", 0),
                duration_s=0.0,
            )
        if kind == schema.COLLECTIVE and "comm_type" in self.facts and not host:
            return self._collective(operation)
        if kind not in range(schema.METADATA, schema.COLLECTIVE + 1):
            raise self.error(f"nodes have no type {kind}")
        if kind in {schema.SEND, schema.RECEIVE, schema.COLLECTIVE}:
            self.rank.notes.append(_HOST_COPY)
        return operation

    def _after(self) -> tuple[int, ...]:
        others = () if self.rank.calls else self.node.ctrl_deps
        after = tuple(dict.fromkeys((*others, *self.node.data_deps)))
        for number in after:
            if number not in self.rank.numbers:
                raise self.error(f"it depends on node {number}, which is not there")
        return after

    def _duration(self) -> float:
        exact = self.facts.get("duration_s", self.node.duration_micros / 1e6)
        if not isinstance(exact, int | float) or not 0 <= exact < float("inf"):
            raise self.error(f"duration_s is {exact!r} instead of seconds")
        return exact

    def _collective(self, operation: Node) -> Node:
        number = self._count("comm_type")
        if number >= len(_KINDS):
            raise self.error(f"no collective has comm_type {number}")
        if not all(_list(self.facts.get("involved_dim", True))):
            self.rank.notes.append("involved_dim is ignored: collectives span their whole group")
        splits = _list(self.facts.get("send_splits", ()))
        size = self._count("comm_size", 0 if _KINDS[number] == "barrier" else None)
        if not all(isinstance(split, int) and split >= 0 for split in splits):
            raise self.error("send_splits are not bytes")
        if splits and sum(map(int, splits)) != size:
            raise self.error(f"send_splits do not add up to comm_size {size}")
        return replace(
            operation,
            kind="collective",
            collective=_KINDS[number],
            size=size,
            group=self._group(),
            splits=tuple(map(int, splits)),
            root=self._count("root", 0),
            duration_s=0.0,
        )

    def _group(self) -> str:
        number = str(self.facts.get("pg_name", ""))
        if number in self.rank.groups:
            return self.rank.names.get(number, number)
        if number not in _NO_GROUP:
            remedy = f'a file groups.json with {{"{number}": [ranks]}} is needed beside the trace'
            raise self.error(f"group {number!r} is not known: {remedy}")
        return WORLD

    def _count(self, name: str, default: int | None = None) -> int:
        value = self.facts.get(name, default)
        if value is None:
            raise self.error(f"it has no attribute {name}")
        if not isinstance(value, int) or (value < 0 and value != default):
            raise self.error(f"{name} is {value!r}, not a whole number from 0")
        return value


class ChakraWriter:
    """Writes a file of protobuf messages for each rank, and the groups as JSON beside them."""

    name = "chakra"

    def write(self, graph: ExecutionGraph, path: Path) -> None:
        """Write `PATH.RANK.et` and, if there are groups, `PATH.groups.json`.

        Groups whose names are not numbers get numbers, as ASTRA-sim needs them.

        Args:
            graph: The operations of all ranks.
            path: Prefix of the files; a suffix `.et` is taken off.

        Raises:
            SpecError: If the format can't express the graph.
        """
        prefix = path.with_suffix("") if path.suffix == ".et" else path
        numbers = group_numbers(graph)
        for rank, nodes in graph.ranks.items():
            file = prefix.with_name(f"{prefix.name}.{rank}.et")
            write_whole(file, _encoded(graph, rank, nodes, numbers))
        if numbers:
            groups = {number: list(graph.groups[name]) for name, number in numbers.items()}
            file = prefix.with_name(f"{prefix.name}.groups.json")
            write_whole(file, json.dumps(groups) + "\n")


def _encoded(
    graph: ExecutionGraph, rank: int, nodes: Sequence[Node], numbers: Mapping[str, str]
) -> bytes:
    renamed = [f"{number}={name}" for name, number in numbers.items() if number != name]
    facts = ("name", graph.name), ("groups", renamed), ("notes", graph.notes)
    try:
        attributes = [
            schema.attribute(f"moefabric_{name}", "string", value) for name, value in facts if value
        ]
        metadata = schema.GlobalMetadata(version="0.0.4", attr=attributes)
        return schema.encoded([metadata, *(_chakra_node(rank, node, numbers) for node in nodes)])
    except ValueError as error:
        raise SpecError([(f"rank {rank}", f"Chakra can't express it: {error}")]) from error


def _chakra_node(rank: int, node: Node, numbers: Mapping[str, str]) -> Message:
    if node.number < 0 or any(number < 0 for number in node.after):
        raise ValueError(f"operation {node.number} has or waits for a negative number")
    kinds = {"compute": schema.COMPUTE, "send": schema.SEND, "receive": schema.RECEIVE}
    message: Message = schema.Node(
        id=node.number,
        name=node.name,
        type=kinds.get(node.kind, schema.COLLECTIVE),
        data_deps=node.after,
        duration_micros=round(node.duration_s * 1e6),
        attr=[schema.attribute(*fact) for fact in _facts(rank, node, numbers)],
    )
    return message


def _facts(
    rank: int, node: Node, numbers: Mapping[str, str]
) -> Iterator[tuple[str, str, schema.Scalar | Sequence[schema.Scalar]]]:
    """Yield name, kind and value of an operation's attributes."""
    yield "is_cpu_op", "bool", False
    if round(node.duration_s * 1e6) / 1e6 != node.duration_s:
        yield "duration_s", "double", node.duration_s
    if node.stream >= 0:
        yield "stream", "int64", node.stream
    if node.kind in {"send", "receive"}:
        source, target = (rank, node.peer) if node.kind == "send" else (node.peer, rank)
        yield "comm_size", "int64", node.size
        yield "comm_src", "int32", source
        yield "comm_dst", "int32", target
        yield "comm_tag", "int32", node.tag
    if node.kind != "collective":
        return
    if node.collective is None:
        raise ValueError(f"operation {node.number} is no collective in particular")
    yield "comm_type", "int64", _COMM_TYPES[node.collective]
    yield "comm_size", "int64", node.size
    if node.group in numbers:
        yield "pg_name", "string", numbers[node.group]
    elif node.group != WORLD:
        raise ValueError(f"operation {node.number}: there is no group {node.group}")
    if node.splits:
        yield "send_splits", "uint64", node.splits
    if node.root:
        yield "root", "int32", node.root
