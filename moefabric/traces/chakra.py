"""Chakra execution traces as execution graphs, and back.

A trace has a file for each rank, `PREFIX.RANK.et`, and its process groups in a JSON file beside
them, as ASTRA-sim's `--comm-group-configuration`, or in metadata nodes. The format has no
all-to-all with unequal parts and no streams; both are attributes of this project
(`send_splits`, `root`, `stream`, `duration_s`), which other tools ignore.
"""

import ast
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from moefabric.config.atomic_file import write_whole
from moefabric.core.errors import SpecError, TraceError
from moefabric.traces import chakra_schema as schema
from moefabric.traces.chakra_schema import Attribute, ChakraFile, ChakraNode
from moefabric.traces.files import MAX_JSON_BYTES, rank_files, read_bytes, read_json
from moefabric.traces.group_numbers import group_numbers
from moefabric.traces.protobuf import Scalar, WireError, fields, read_delimited, text
from moefabric.workload.execution_graph import WORLD, CollectiveKind, ExecutionGraph, Node

_COLLECTIVES: Final[Mapping[int, CollectiveKind]] = {
    schema.ALL_REDUCE: "all_reduce",
    schema.REDUCE: "reduce",
    schema.ALL_GATHER: "all_gather",
    schema.GATHER: "gather",
    schema.SCATTER: "scatter",
    schema.BROADCAST: "broadcast",
    schema.ALL_TO_ALL: "all_to_all",
    schema.REDUCE_SCATTER: "reduce_scatter",
    schema.BARRIER: "barrier",
    schema.REDUCE_SCATTER_BLOCK: "reduce_scatter",
}
_COMM_TYPES: Final = {kind: number for number, kind in reversed(list(_COLLECTIVES.items()))}
_NO_GROUP: Final = frozenset({"", "0", "empty"})
"""Names that stand for all ranks unless a group has them."""
_GROUP_FILES: Final = ("groups.json", "comm_groups.json", "comm_group.json")
_JSON_COUNTS: Final = ("tensor_size", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag")
_HOST_COPY: Final = (
    "collectives on the host side and those without comm_type are computation of their duration"
)
_CALL_STACK: Final = "control dependencies are PyTorch's call stack and order nothing"


class ChakraReader:
    """Reads the files of protobuf messages that ASTRA-sim takes."""

    name = "chakra"

    def matches(self, path: Path, head: bytes) -> bool:
        """Return whether a file begins with the message `GlobalMetadata`."""
        del path
        try:
            message = read_delimited(head, 0, len(head))
            texts = {field.number: text(field) for field in fields(message) if field.number == 1}
            numbers = {field.number for field in fields(message)}
        except WireError:
            return False
        return bool(numbers) and numbers <= {1, 2} and texts.get(1, "").isprintable()

    def read(self, path: Path) -> ExecutionGraph:
        """Read the files of all ranks."""
        return _read(path, _protobuf_file)


class ChakraJsonReader:
    """Reads the JSON that Chakra's feeder takes in place of protobuf messages."""

    name = "chakra-json"

    def matches(self, path: Path, head: bytes) -> bool:
        """Return whether a file is an object with a `workload_graph`."""
        del path
        return head.lstrip()[:1] == b"{" and b'"workload_graph"' in head

    def read(self, path: Path) -> ExecutionGraph:
        """Read the files of all ranks."""
        return _read(path, _json_file)


@dataclass(frozen=True)
class _Source:
    """The decoded file of a rank, and where its nodes are in it."""

    path: Path
    content: ChakraFile
    place: Callable[[int], str]

    def fault(self, index: int, fault: str) -> TraceError:
        node = self.content.nodes[index]
        return TraceError(self.path, f"{self.place(index)} (node {node.number})", fault)


def _protobuf_file(path: Path) -> _Source:
    try:
        content = schema.decode_file(read_bytes(path))
    except WireError as error:
        raise TraceError(path, f"byte {error.offset}", error.fault) from error
    return _Source(path, content, lambda index: f"byte {content.nodes[index].offset}")


def _json_file(path: Path) -> _Source:
    document = read_json(path)
    entries = document.get("workload_graph") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise TraceError(path, "workload_graph", "a list of nodes is needed")
    nodes = tuple(_json_node(path, n, entry) for n, entry in enumerate(entries))
    return _Source(path, ChakraFile(nodes=nodes), lambda index: f"workload_graph[{index}]")


def _json_node(path: Path, index: int, entry: Any) -> ChakraNode:
    place = f"workload_graph[{index}]"
    if not isinstance(entry, dict):
        raise TraceError(path, place, "an object is needed")

    def count(key: str, default: int | None = None) -> int:
        value = entry.get(key, default)
        if not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise TraceError(path, f"{place}.{key}", f"{value!r} is not a whole number")
        return value

    after = entry.get("data_deps", [])
    if not isinstance(after, list) or not all(isinstance(one, int) for one in after):
        raise TraceError(path, f"{place}.data_deps", "a list of the numbers of nodes is needed")
    attributes = [Attribute("is_cpu_op", "bool", bool(entry.get("is_cpu_op", False)))]
    attributes += [Attribute(key, "int64", count(key)) for key in _JSON_COUNTS if key in entry]
    if "pg_name" in entry:
        attributes.append(Attribute("pg_name", "string", str(entry["pg_name"])))
    return ChakraNode(
        count("Id"), str(entry.get("Name", "")), count("NodeType"), (), tuple(after), 0,
        count("runtime", 0), attributes=tuple(attributes),
    )  # fmt: skip


def _read(path: Path, decode: Callable[[Path], _Source]) -> ExecutionGraph:
    files = rank_files(path)
    sources = {rank: decode(file) for rank, file in files.items()}
    groups = _groups_of_file(path, next(iter(files.values())), len(files))
    names: dict[str, str] = {}
    title, notes = path.name, list[str]()
    for source in sources.values():
        facts = {one.name: one.value for one in source.content.attributes}
        title = str(facts.get("moefabric_name", title))
        names |= dict(_pairs(facts.get("moefabric_groups", ())))
        notes += [str(note) for note in _list(facts.get("moefabric_notes", ()))]
        for name, members in _groups_of_metadata(source, len(files)):
            groups.setdefault(name, members)
    ranks: dict[int, tuple[Node, ...]] = {}
    for rank, source in sources.items():
        nodes = _Rank(source, frozenset(groups), names)
        ranks[rank] = nodes.nodes()
        notes += nodes.notes
    named = {names.get(name, name): members for name, members in groups.items()}
    return ExecutionGraph(ranks, named, title, tuple(dict.fromkeys(notes)))


def _list(value: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _pairs(value: Scalar | tuple[Scalar, ...]) -> Iterator[tuple[str, str]]:
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
            document = read_json(file, MAX_JSON_BYTES)
            if not isinstance(document, dict):
                raise TraceError(file, "", "an object of groups and their ranks is needed")
            return {name: _members(file, name, of, ranks) for name, of in document.items()}
    return {}


def _members(path: Path, name: str, members: Any, ranks: int) -> tuple[int, ...]:
    if not isinstance(members, list) or not all(isinstance(one, int) for one in members):
        raise TraceError(path, name, "a list of ranks is needed")
    return tuple(members) if members else tuple(range(ranks))


def _groups_of_metadata(source: _Source, ranks: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the groups of nodes that hold PyTorch's configuration of process groups."""
    for node in source.content.nodes:
        if node.type != schema.METADATA or not node.inputs or "pg_name" not in node.inputs.values:
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
        self._numbers = {node.number for node in source.content.nodes}
        self._calls = any(
            attribute.name == "rf_id"
            for node in source.content.nodes
            for attribute in node.attributes
        )
        if self._calls and any(node.control_after for node in source.content.nodes):
            self.notes.append(_CALL_STACK)

    def nodes(self) -> tuple[Node, ...]:
        numbers: set[int] = set()
        operations = []
        for index, node in enumerate(self.source.content.nodes):
            if node.number in numbers:
                raise self.source.fault(index, "another node has this number, too")
            numbers.add(node.number)
            operations.append(self._operation(index, node))
        return self._in_order(tuple(operations))

    def _in_order(self, operations: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return operations without streams if the order of the file contradicts dependencies."""
        alone = ExecutionGraph({0: operations})
        if any(one.stream >= 0 for one in operations) and any(alone.order_faults(0)):
            self.notes.append("streams are left out: they contradict the dependencies")
            return tuple(replace(one, stream=-1) for one in operations)
        return operations

    def _operation(self, index: int, node: ChakraNode) -> Node:
        facts = {one.name: one.value for one in node.attributes if one.kind is not None}
        operation = Node(
            node.number, "compute", node.name, self._after(index, node),
            self._duration(index, node, facts), stream=self._count(index, facts, "stream", -1),
        )  # fmt: skip
        host = bool(facts.get("is_cpu_op", False))
        if node.type in {schema.SEND, schema.RECEIVE} and not host:
            return self._message(index, node, facts, operation)
        if node.type == schema.COLLECTIVE and "comm_type" in facts and not host:
            return self._collective(index, facts, operation)
        if node.type not in range(schema.METADATA, schema.COLLECTIVE + 1):
            raise self.source.fault(index, f"nodes have no type {node.type}")
        if node.type in {schema.SEND, schema.RECEIVE, schema.COLLECTIVE}:
            self.notes.append(_HOST_COPY)
        return operation

    def _after(self, index: int, node: ChakraNode) -> tuple[int, ...]:
        numbers = node.data_after if self._calls else (*node.control_after, *node.data_after)
        after = tuple(dict.fromkeys(numbers))
        for number in after:
            if number not in self._numbers:
                raise self.source.fault(index, f"it depends on node {number}, which is not there")
        return after

    def _duration(
        self, index: int, node: ChakraNode, facts: Mapping[str, Scalar | tuple[Scalar, ...]]
    ) -> float:
        exact = facts.get("duration_s", node.duration_us / 1e6)
        if not isinstance(exact, int | float) or not 0 <= exact < float("inf"):
            raise self.source.fault(index, f"duration_s is {exact!r} instead of seconds")
        return exact

    def _message(
        self, index: int, node: ChakraNode, facts: Mapping[str, Any], operation: Node
    ) -> Node:
        sends = node.type == schema.SEND
        return replace(
            operation,
            kind="send" if sends else "receive",
            size=self._count(index, facts, "comm_size"),
            peer=self._count(index, facts, "comm_dst" if sends else "comm_src"),
            tag=self._count(index, facts, "comm_tag", 0),
            duration_s=0.0,
        )

    def _collective(self, index: int, facts: Mapping[str, Any], operation: Node) -> Node:
        number = self._count(index, facts, "comm_type")
        if number not in _COLLECTIVES:
            raise self.source.fault(index, f"no collective has comm_type {number}")
        if not all(_list(facts.get("involved_dim", True))):
            self.notes.append("involved_dim is ignored: collectives span their whole group")
        splits = _list(facts.get("send_splits", ()))
        size = self._count(
            index, facts, "comm_size", 0 if _COLLECTIVES[number] == "barrier" else None
        )
        if not all(isinstance(one, int) and one >= 0 for one in splits):
            raise self.source.fault(index, "send_splits are not bytes")
        if splits and sum(map(int, splits)) != size:
            raise self.source.fault(index, f"send_splits do not add up to comm_size {size}")
        return replace(
            operation,
            kind="collective",
            collective=_COLLECTIVES[number],
            size=size,
            group=self._group(index, facts.get("pg_name", "")),
            splits=tuple(map(int, splits)),
            root=self._count(index, facts, "root", 0),
            duration_s=0.0,
        )

    def _group(self, index: int, name: object) -> str:
        number = str(name)
        if number in self.groups:
            return self.names.get(number, number)
        if number not in _NO_GROUP:
            remedy = f'a file groups.json with {{"{number}": [ranks]}} is needed beside the trace'
            raise self.source.fault(index, f"group {number!r} is not known: {remedy}")
        return WORLD

    def _count(
        self, index: int, facts: Mapping[str, Any], name: str, default: int | None = None
    ) -> int:
        value = facts.get(name, default)
        if value is None:
            raise self.source.fault(index, f"it has no attribute {name}")
        if not isinstance(value, int) or (value < 0 and value != default):
            raise self.source.fault(index, f"{name} is {value!r}, not a whole number from 0")
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
    facts = [Attribute("moefabric_name", "string", graph.name)] if graph.name else []
    renamed = tuple(f"{number}={name}" for name, number in numbers.items() if number != name)
    for name, values in (("moefabric_groups", renamed), ("moefabric_notes", graph.notes)):
        if values:
            facts.append(Attribute(name, "string", values))
    try:
        written = tuple(_chakra_node(rank, node, numbers) for node in nodes)
        return ChakraFile(attributes=tuple(facts), nodes=written).encode()
    except ValueError as error:
        raise SpecError([(f"rank {rank}", f"Chakra can't express it: {error}")]) from error


def _chakra_node(rank: int, node: Node, numbers: Mapping[str, str]) -> ChakraNode:
    if node.number < 0 or any(number < 0 for number in node.after):
        raise ValueError(f"operation {node.number} has or waits for a negative number")
    microseconds = round(node.duration_s * 1e6)
    attributes = [Attribute("is_cpu_op", "bool", False)]
    if microseconds / 1e6 != node.duration_s:
        attributes.append(Attribute("duration_s", "double", node.duration_s))
    if node.stream >= 0:
        attributes.append(Attribute("stream", "int64", node.stream))
    kinds = {"compute": schema.COMPUTE, "send": schema.SEND, "receive": schema.RECEIVE}
    if node.kind == "collective":
        attributes += _collective_attributes(node, numbers)
    elif node.kind != "compute":
        ends = (rank, node.peer) if node.kind == "send" else (node.peer, rank)
        attributes += [
            Attribute("comm_size", "int64", node.size),
            Attribute("comm_src", "int32", ends[0]),
            Attribute("comm_dst", "int32", ends[1]),
            Attribute("comm_tag", "int32", node.tag),
        ]
    return ChakraNode(
        node.number, node.name, kinds.get(node.kind, schema.COLLECTIVE), (), node.after, 0,
        microseconds, attributes=tuple(attributes),
    )  # fmt: skip


def _collective_attributes(node: Node, numbers: Mapping[str, str]) -> Iterator[Attribute]:
    if node.collective is None:
        raise ValueError(f"operation {node.number} is no collective in particular")
    yield Attribute("comm_type", "int64", _COMM_TYPES[node.collective])
    yield Attribute("comm_size", "int64", node.size)
    if node.group in numbers:
        yield Attribute("pg_name", "string", numbers[node.group])
    elif node.group != WORLD:
        raise ValueError(f"operation {node.number}: there is no group {node.group}")
    if node.splits:
        yield Attribute("send_splits", "uint64", node.splits)
    if node.root:
        yield Attribute("root", "int32", node.root)
