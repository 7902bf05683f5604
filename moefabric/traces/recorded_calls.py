"""Calls of communication as PyTorch records them, and the graph that they imply.

The calls of a rank are in program order. A collective runs on a stream of its group, as NCCL's do;
messages between two ranks have none, so that those of a batch may be in flight together.
If a later call waits for it, what lies between runs meanwhile; otherwise the program waits for it
at once, as PARAM's replay does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard

from moefabric.core.errors import TraceError
from moefabric.traces.files import is_count
from moefabric.workload.graphs.execution_graph import WORLD, CollectiveKind, ExecutionGraph, Node

COMPUTE_STREAM: Final = 0
"""Stream of computation. That of the n-th group of a rank is n + 1."""

DEFAULT_GROUP: Final = "0"
"""PyTorch's name of the group of all ranks."""

MAX_RANKS: Final = 1 << 20
"""Ranks of a job: more are a mistake in a file, and would take much memory."""

Request = tuple[str, int]
"""Group and number by which a wait names the call that it waits for."""

CallKind = CollectiveKind | Literal["send", "receive", "wait", "init"]
"""Kind of a call."""

_NAMES: Final[Mapping[CallKind, str]] = {
    "all_to_all": "alltoall alltoallv alltoallbase alltoallsingle",
    "all_reduce": "allreduce allreducecoalesced",
    "all_gather": "allgather allgatherbase allgathercoalesced allgatherintotensorcoalesced",
    "reduce_scatter": "reducescatter reducescatterbase reducescattertensorcoalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier monitoredbarrier",
    "send": "send isend",
    "receive": "recv irecv recvanysource",
    "wait": "wait",
    "init": "init",
}
"""Letters of the recorded names."""
_KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}

TYPE_BYTES: Final[Mapping[str, int]] = {
    "signed char": 1, "unsigned char": 1, "short int": 2, "long int": 8,
    "bool": 1, "byte": 1, "char": 1, "uint8": 1, "int8": 1, "short": 2, "int16": 2, "uint16": 2,
    "half": 2, "float16": 2, "bfloat16": 2, "int": 4, "int32": 4, "uint32": 4, "float": 4,
    "float32": 4, "long": 8, "int64": 8, "uint64": 8, "double": 8, "float64": 8,
    "complexhalf": 4, "complexfloat": 8, "complexdouble": 16, "float8_e5m2": 1,
    "float8_e4m3fn": 1, "float8_e5m2fnuz": 1, "float8_e4m3fnuz": 1,
}  # fmt: skip
"""Bytes of an element, by PyTorch's names in small letters."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of a rank.

    Attributes:
        node: The operation, without order; a wait is a computation that takes no time.
        request: What a wait names it by, or what this wait waits for.
        waits: Whether it is a wait.
    """

    node: Node
    request: Request | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """Work that a profile recorded: a kernel, a copy, or an operator on the CPU.

    Attributes:
        start_s: Start.
        end_s: End.
        name: Name of the kernel.
        stream: CUDA stream, or the number of a group.
        facts: What the profile says of it.
        place: Where in the file it is.
    """

    start_s: float
    end_s: float
    name: str
    stream: int
    facts: dict[str, Any]
    place: str


def are_ranks(value: object) -> TypeGuard[list[int]]:
    """Return whether a value of JSON is a list of ranks."""
    return isinstance(value, list) and all(is_count(rank, MAX_RANKS) for rank in value)


def call_kind(name: str) -> CallKind | None:
    """Return the kind of a call by its recorded name, or None if the name is unknown.

    Args:
        name: A name such as `all_to_allv`, `_allgather_base` or `nccl:all_reduce`.
    """
    return _KINDS.get(letters(name))


def call_node(number: int, name: str, kind: CallKind, group: str, other: int) -> Node:
    """Return a collective, or a message, whose size isn't known yet.

    Args:
        number: Number of the operation.
        name: Its recorded name.
        kind: Its kind, which is neither a wait nor the start of a group.
        group: Group of the collective.
        other: Rank of the root, or of the other end of a message.
    """
    match kind:
        case "wait" | "init":
            raise AssertionError(kind)
        case "send" | "receive":
            return Node(number, kind, name, peer=other)
        case _:
            return Node(number, "collective", name, collective=kind, group=group, root=other)


def letters(name: str) -> str:
    """Return the letters of a recorded name after its prefix: `alltoallbase`."""
    return "".join(letter for letter in name.lower().rpartition(":")[2] if letter.isalpha())


def ordered_nodes(calls: Sequence[RecordedCall]) -> tuple[Node, ...]:
    """Return the operations of a rank's calls with their order and streams.

    Args:
        calls: In program order; numbers of operations are unique.
    """
    waited = _waited(calls)
    open_until = set(waited.values())
    streams: dict[str, int] = {}
    front: tuple[int, ...] = ()
    nodes: list[Node] = []
    for index, call in enumerate(calls):
        if call.waits:
            if index in waited:
                front = tuple(dict.fromkeys((*front, calls[waited[index]].node.number)))
        elif call.node.kind == "compute":
            nodes.append(replace(call.node, after=front, stream=COMPUTE_STREAM))
            front = (call.node.number,)
        else:
            stream = -1
            if call.node.kind == "collective":
                stream = streams.setdefault(call.node.group, len(streams) + 1)
            nodes.append(replace(call.node, after=front, stream=stream))
            if index not in open_until:
                front = (call.node.number,)
    return tuple(nodes)


def _waited(calls: Sequence[RecordedCall]) -> dict[int, int]:
    """Return the position of the call that each wait waits for, by the wait's position."""
    waited: dict[int, int] = {}
    open_calls: dict[int, dict[str, int]] = {}
    for index, call in enumerate(calls):
        if call.request is None:
            continue
        if not call.waits:
            open_calls.setdefault(call.request[1], {})[call.request[0]] = index
            continue
        group, number = call.request
        by_group = open_calls.get(number, {})
        # Waits of older versions have no group, but numbers are unique in a process there.
        name = group or next(iter(by_group), "")
        if name in by_group:
            waited[index] = by_group.pop(name)
    return waited


def job_graph(
    path: Path, ranks: Mapping[int, tuple[Node, ...]], world: int,
    groups: Mapping[str, tuple[int, ...]], notes: Iterable[str],
) -> ExecutionGraph:  # fmt: skip
    """Return the graph of all ranks of a job, with a note if one rank stands for all.

    Args:
        path: The trace.
        ranks: The operations of the ranks that it has.
        world: Number of ranks of the job.
        groups: Ranks of each group, but that of all ranks.
        notes: What was left out; the same note may come twice.

    Raises:
        TraceError: If ranks are missing and one can't stand for them: it sends messages, or calls
            collectives of part of the ranks.
    """
    if world <= len(ranks):
        return ExecutionGraph(ranks, groups, path.name, tuple(dict.fromkeys(notes)))
    nodes = ranks[0]
    reason = ""
    if len(ranks) > 1:
        reason = "others are missing"
    elif any(node.kind in {"send", "receive"} for node in nodes):
        reason = "it sends messages"
    elif any(node.kind == "collective" and node.group != WORLD for node in nodes):
        reason = "it calls collectives of part of the ranks"
    if reason:
        fault = f"the job has {world} ranks, the trace {len(ranks)}; {reason}"
        raise TraceError(path, "", f"{fault}: the files of all ranks are needed")
    everyone = dict.fromkeys(range(world), nodes)
    note = f"the file of one rank stands for all {world} ranks"
    return ExecutionGraph(everyone, groups, path.name, (*dict.fromkeys(notes), note))
