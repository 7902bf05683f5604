"""PyTorch execution traces (`ExecutionTraceObserver`), versions 1.0.1 to 1.1.1, as graphs.

The calls `record_param_comms` are communication, or, where a backend other than NCCL has left none,
the operators of c10d; their order and waits give the order of the operations. An execution trace
has no times. A profile of the same run in the same folder (`pytorch_profile`) gives the computation
between the calls; without it, computation takes no time.
Formats: PyTorch's ExecutionTraceObserver and PARAM's `et_replay/execution_trace.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import TraceError
from moefabric.traces import recorded_calls as recorded
from moefabric.traces.c10d_calls import Arguments, arguments_of, called_group
from moefabric.traces.files import (
    Entry,
    as_time,
    file_families,
    is_count,
    json_list,
    parse_json,
    read_head,
    read_json,
    refuse_copies,
)
from moefabric.traces.pytorch_profile import is_profile, read_profile, timed_nodes
from moefabric.traces.recorded_calls import RecordedCall
from moefabric.workload.graphs.execution_graph import WORLD, ExecutionGraph, Node

_COMMUNICATION: Final = "record_param_comms"
_GROUPS: Final = "process_group:init"
_WITH_OTHER_RANK: Final = {"send", "receive", "broadcast", "reduce", "gather", "scatter"}
_NO_TIMES: Final = "the trace has no times: computation takes none"
_SILENT: Final = (
    "a rank has no calls of communication (record_param_comms or c10d): it does nothing"
)


class PytorchExecutionReader:
    """Reads the JSON files that PyTorch's ExecutionTraceObserver writes, one for each rank."""

    name = "pytorch-et"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether a file is an object with a `schema` and `nodes`."""
        return _is_execution_trace(head)

    def read(self, path: Path) -> ExecutionGraph:
        """Read the files of all ranks, and profiles of the same ranks in the same folder."""
        families = file_families(path)
        traces = [of for of in families if _is_execution_trace(read_head(of[0]))]
        profiles = [of for of in families if is_profile(read_head(of[0]))]
        if len(traces) != 1 or len(profiles) > 1:
            names = ", ".join(of[0].name for of in families)
            raise TraceError(path, "", f"holds several traces ({names}): give a longer prefix")
        refuse_copies(traces[0])
        ranks = {rank: _Rank(file) for rank, file in traces[0].items()}
        return _graph(path, ranks, profiles[0] if profiles else {})


def _is_execution_trace(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"schema"' in head and b'"nodes"' in head


def _graph(
    path: Path, ranks: Mapping[int, "_Rank"], profiles: Mapping[int, Path]
) -> ExecutionGraph:
    groups = {name: of for rank in ranks.values() for name, of in rank.groups.items()}
    world = max([len(ranks), *(rank.world for rank in ranks.values())])
    names = {name: name for name in groups}
    if groups.get(recorded.DEFAULT_GROUP) == tuple(range(world)):
        names[recorded.DEFAULT_GROUP] = WORLD
    nodes: dict[int, tuple[Node, ...]] = {}
    notes: list[str] = []
    for number, rank in ranks.items():
        calls = [_renamed(call, names, rank, world) for call in rank.calls]
        if number in profiles:
            nodes[number] = timed_nodes(calls, read_profile(profiles[number]))
        else:
            nodes[number] = recorded.ordered_nodes(calls)
            if not any(call.node.duration_s for call in calls):
                notes.append(_NO_TIMES if calls else _SILENT)
        notes += rank.notes
    named = {names[name]: of for name, of in groups.items() if names[name] != WORLD}
    return recorded.job_graph(path, nodes, world, named, notes)


def _renamed(
    call: RecordedCall, names: Mapping[str, str], rank: "_Rank", world: int
) -> RecordedCall:
    """Return a call with the graph's name of its group."""
    group = call.node.group
    if call.node.kind != "collective":
        return call
    if group not in names:
        # Versions before 1.0.3 name groups by pointers and need not list them.
        if len(rank.unlisted) > 1 or rank.sizes.get(group, world) != world:
            fault = f"the ranks of group {group} are not in the trace"
            raise TraceError(rank.path, f"node {call.node.number}", fault)
        return replace(call, node=replace(call.node, group=WORLD))
    return replace(call, node=replace(call.node, group=names[group]))


@dataclass
class _Rank:
    """Calls and groups of one file.

    Attributes:
        calls: Communication in program order.
        groups: Ranks of the groups that the file lists.
        sizes: Ranks of groups by what calls say of them.
        unlisted: Groups that are called and not listed.
        world: Number of ranks of the job, as far as the file says; 0 if it doesn't.
        notes: What was assumed.
    """

    path: Path
    calls: list[RecordedCall] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    world: int = 0
    notes: list[str] = field(default_factory=list)
    _aliases: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        document = read_json(self.path)
        nodes = json_list(self.path, document, "nodes", "nodes")
        entries = [_Entry(self.path, n, node) for n, node in enumerate(nodes)]
        entries.sort(key=lambda entry: entry.number)
        for entry in entries:
            if _GROUPS in entry.name:
                self._read_groups(entry)
        operators = not any(entry.name == _COMMUNICATION for entry in entries)
        number = entries[-1].number if entries else 0
        end: float | None = None
        for entry in entries:
            if entry.name == _COMMUNICATION:
                call = self._call(entry)
            elif operators and (arguments := arguments_of(entry.name)):
                call = self._operator(entry, arguments)
            else:
                continue
            if call is None:
                continue
            if end is not None and entry.start_us is not None and entry.start_us > end:
                number += 1
                gap = Node(number, "compute", duration_s=(entry.start_us - end) / 1e6)
                self.calls.append(RecordedCall(gap))
            self.calls.append(call)
            end = None if entry.start_us is None else entry.start_us + entry.duration_us
        self.world = max([self.world, *self.sizes.values()], default=0)

    def _read_groups(self, entry: "_Entry") -> None:
        groups = entry.document(next(iter(entry.items("inputs")), ""))
        if not isinstance(groups, list):
            raise entry.error("a list of process groups is needed")
        for group in groups:
            ranks = group.get("ranks") if isinstance(group, dict) else None
            if not recorded.are_ranks(ranks):
                raise entry.error("a process group has no list of ranks")
            size = _group_size(entry, group.get("group_size", len(ranks)))
            members = tuple(ranks) or tuple(range(size))
            name = str(group.get("pg_name", len(self.groups)))
            self.groups[name] = members
            # Versions before 1.0.3 call groups by one of these.
            self._aliases |= {
                str(group[key]): name for key in ("uid", "backend_id") if key in group
            }
            self.world = max(self.world, *(rank + 1 for rank in members), size)

    def _call(self, entry: "_Entry") -> RecordedCall | None:
        inputs = entry.items("inputs")
        first = 0 if inputs and _is_request(inputs[0]) else 1
        if len(inputs) < first + 4:
            raise entry.error("inputs.values of communication is too short")
        request, group, peer, name = inputs[first : first + 4]
        kind = recorded.call_kind(str(entry.attributes.get("collective_name", name)))
        if kind is None:
            raise entry.error(f"{name!r} is no collective that is known")
        number = request[0] if isinstance(request, list) and request else request
        group_name = str(group[0] if isinstance(group, list) and group else group)
        group_name = self._aliases.get(group_name, group_name)
        if kind == "init":
            return None
        if not is_count(number) or not isinstance(peer, int):
            raise entry.error("the call's number or rank is no number")
        if kind == "wait":
            listed = group_name if group_name in self.groups else ""
            return RecordedCall(Node(entry.number, "compute"), (listed, number), waits=True)
        members = self.groups.get(group_name, ())
        if not members:
            self.unlisted.add(group_name)
        splits = inputs[first + 4] if len(inputs) > first + 4 else []
        self._remember_size(entry, group_name, splits)
        peer = members[peer] if 0 <= peer < len(members) else peer
        other = peer if kind in _WITH_OTHER_RANK else 0
        node = recorded.call_node(entry.number, str(name), kind, group_name, other)
        return RecordedCall(self._sized(entry, node, splits), (group_name, number))

    def _operator(self, entry: "_Entry", arguments: Arguments) -> RecordedCall:
        """Return the call of an operator of c10d."""
        kind = recorded.call_kind(entry.name)
        assert kind is not None
        splits = entry.argument(arguments.splits)
        splits = splits if isinstance(splits, list) else []
        elements = [sum(tensor[3] for tensor in entry.tensors(n)) for n in arguments.whole or ()]
        group, ranks = called_group(self.groups, splits, elements, self.notes)
        members = self.groups.get(group, ())
        if not members:
            self.unlisted.add(group)
            self.sizes[group] = max(ranks or 0, self.sizes.get(group, 0))
        root = entry.argument(arguments.root)
        root = root if is_count(root, recorded.MAX_RANKS) else 0
        root = members[root] if root < len(members) else root
        sent = entry.tensors(arguments.sent)
        node = recorded.call_node(entry.number, entry.name, kind, group, root)
        parts = {"barrier": 0, "scatter": len(members) or 1}.get(kind, 1)
        node = replace(node, size=parts * sum(tensor[3] * tensor[4] for tensor in sent))
        if kind == "all_to_all":
            rows = splits or [tensor[3] for tensor in sent]
            node = self._split(entry, node, rows if len(rows) > 1 else [])
        return RecordedCall(node, (group, entry.number))

    def _remember_size(self, entry: "_Entry", group: str, splits: Any) -> None:
        default = len(splits) if isinstance(splits, list) else 0
        if size := _group_size(entry, entry.attributes.get("pg_size", default)):
            self.sizes[group] = max(size, self.sizes.get(group, 0))

    def _sized(self, entry: "_Entry", node: Node, splits: Any) -> Node:
        if node.collective == "barrier":
            return node
        receives = node.kind == "receive" or node.collective == "scatter"
        size = entry.bytes("out" if receives else "in")
        if node.collective == "scatter":
            size *= max(1, len(self.groups.get(node.group, ())) or self.sizes.get(node.group, 1))
        node = replace(node, size=size)
        if node.collective != "all_to_all":
            return node
        return self._split(entry, node, splits or entry.part_elements())

    def _split(self, entry: "_Entry", node: Node, splits: Any) -> Node:
        """Return an all-to-all with the bytes for each rank, given the rows for each."""
        size = node.size
        if not splits:
            return node
        if not isinstance(splits, list) or not all(is_count(split) for split in splits):
            raise entry.error(f"{splits!r} are not splits of an all-to-all")
        total = sum(splits)
        if total == 0 or size % total:
            if size == total == 0:
                return node
            raise entry.error(f"splits of {total} rows do not divide {size} bytes")
        parts = tuple(split * (size // total) for split in splits)
        return node if len(set(parts)) == 1 else replace(node, splits=parts)


def _group_size(entry: "_Entry", size: Any) -> int:
    if not is_count(size) or size > recorded.MAX_RANKS:
        raise entry.error(f"a process group has {size!r} ranks")
    return size


def _is_request(value: object) -> bool:
    """Return whether an input is a call's number: `7`, or `[7, false]` with whether it is P2P."""
    if isinstance(value, list):
        return len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], bool)
    return isinstance(value, int)


class _Entry(Entry):
    """A node of a file, whose version may keep its facts in the node or in its attributes."""

    def __init__(self, path: Path, index: int, node: Any) -> None:
        super().__init__(path, f"nodes[{index}]", node)
        self.name, self.number = str(node.get("name", "")), self.count("id")
        attributes = node.get("attrs", [])
        if not isinstance(attributes, list):
            raise self.error("a list of attributes is needed", "attrs")
        pairs = (pair for pair in attributes if isinstance(pair, dict))
        self.attributes = {str(pair.get("name")): pair.get("value") for pair in pairs}
        self.start_us = as_time(node.get("ts"))
        self.duration_us = as_time(node.get("dur")) or as_time(node.get("inclusive_dur")) or 0.0

    def items(self, key: str) -> list[Any]:
        """Return the `inputs` or `outputs`."""
        values = self.values.get(key, [])
        if isinstance(values, dict):
            values = values.get("values", [])
        if not isinstance(values, list):
            raise self.error("a list of values is needed", key)
        return values

    def argument(self, position: int | None) -> Any:
        """Return an input by its position; None if there is none."""
        values = self.items("inputs")
        return values[position] if position is not None and position < len(values) else None

    def tensors(self, position: int) -> list[list[int]]:
        """Return the tensors in an input."""
        return _tensors(self.argument(position))

    def document(self, text: Any) -> Any:
        """Return the document of a JSON text, or None if it is no text."""
        return parse_json(self.path, text, self.place) if isinstance(text, str) else None

    def part_elements(self) -> list[int]:
        """Return the elements of each part if the input is a list of parts."""
        parts = [tensor[3] for tensor in _tensors(self.items("inputs")[:1])]
        return parts if len(parts) > 1 else []

    def bytes(self, direction: str) -> int:
        """Return the bytes of a call: those that its arguments name, or those of whole tensors."""
        tensors = _tensors(self.items(f"{direction}puts")[:1])
        elements = self.attributes.get(f"{direction}_msg_nelems")
        width = recorded.TYPE_BYTES.get(str(self.attributes.get("dtype", "")).lower()) or (
            tensors[0][4] if tensors else None
        )
        if elements is None or width is None:
            return sum(tensor[3] * tensor[4] for tensor in tensors)
        if not is_count(elements):
            raise self.error(
                f"{direction}_msg_nelems is {elements!r} instead of a number of elements"
            )
        return elements * width


def _tensors(value: Any) -> list[list[int]]:
    """Return the tensors `[id, storage, offset, elements, element bytes, device]` in a value."""
    if not isinstance(value, list):
        return []
    if len(value) >= 6 and all(is_count(item) for item in value[:5]) and isinstance(value[5], str):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)]
