"""Execution graphs: the operations of each rank and their dependencies, as trace files have them.

Readers of all formats return this form, and everything that replays, predicts or plots a trace
takes it. Sizes are bytes of the modelled job.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal, get_args

NodeKind = Literal["compute", "send", "receive", "collective"]
"""Action of an operation."""

CollectiveKind = Literal[
    "all_to_all",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
]
"""The collectives, by PyTorch's names."""
COLLECTIVES: Final[tuple[CollectiveKind, ...]] = get_args(CollectiveKind)
ROOTED: Final[frozenset[CollectiveKind]] = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Those in which one rank sends to all others, or receives from them."""

WORLD: Final = "world"
"""The group of all ranks of a graph."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of one rank.

    Attributes:
        number: Number of the operation, unique within its rank.
        kind: What it does.
        name: Its name in the trace.
        after: Numbers of operations of the same rank that end before this one starts.
        duration_s: Seconds of a `compute` operation.
        size: Bytes. Of `send` and `receive`: the message. Of a collective, per rank: its input
            buffer (`all_to_all`, `all_reduce`, `reduce_scatter`, `reduce`, `gather`), its shard
            (`all_gather`), the root's buffer (`broadcast`, `scatter`), 0 (`barrier`).
        collective: Which collective it is.
        group: Name of the ranks that take part in a collective.
        splits: Bytes to each rank of the group, in the group's order, of an `all_to_all` whose
            parts differ. They add up to `size`. Empty: equal parts.
        root: Rank that is the root of a collective.
        peer: Rank that a message goes to or comes from.
        tag: Messages between two ranks match by their tag, and in order among equal tags.
        stream: Operations of a stream run one after another, in the order of the tuple.
            `after` holds across streams. With a negative number, only `after` counts.
    """

    number: int
    kind: NodeKind
    name: str = ""
    after: tuple[int, ...] = ()
    duration_s: float = 0.0
    size: int = 0
    collective: CollectiveKind | None = None
    group: str = WORLD
    splits: tuple[int, ...] = ()
    root: int = 0
    peer: int = -1
    tag: int = 0
    stream: int = -1


Place = tuple[int, int]
"""Rank and number of an operation."""
_Meeting = str | tuple[int, ...]
"""A group; or sender, receiver and tag of messages."""
_Members = list[tuple[int, Node]]
"""Operations that end together, with their ranks."""


@dataclass(frozen=True)
class ExecutionGraph:
    """The operations of all ranks of a job.

    The n-th collective of a group on one rank is the n-th of that group on each other rank, in the
    order of the ranks' tuples, as in NCCL.

    Attributes:
        ranks: Operations by rank. Ranks are numbered from 0.
        groups: Ranks of each group, in its order; `WORLD` is always there.
        name: Name of the trace, for reports.
        notes: What the reader left out, folded or assumed, a sentence each.
    """

    ranks: Mapping[int, tuple[Node, ...]]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    name: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Add the group of all ranks."""
        if WORLD not in self.groups:
            object.__setattr__(self, "groups", {WORLD: tuple(sorted(self.ranks)), **self.groups})

    def faults(self) -> Iterator[str]:
        """Yield a sentence for each error that makes the graph impossible to run."""
        if sorted(self.ranks) != list(range(len(self.ranks))):
            yield f"ranks are not numbered from 0 to {len(self.ranks) - 1}"
        for name, members in self.groups.items():
            if len(set(members)) != len(members) or not set(members) <= set(self.ranks):
                yield f"group {name} has ranks twice or ranks without operations: {members}"
        for rank, nodes in self.ranks.items():
            yield from self._rank_faults(rank, nodes)
        yield from self._match_faults()

    def _rank_faults(self, rank: int, nodes: tuple[Node, ...]) -> Iterator[str]:
        numbers = {node.number for node in nodes}
        if len(numbers) != len(nodes):
            yield f"rank {rank}: a number names two operations"
        for node in nodes:
            place = f"rank {rank}, operation {node.number}"
            if missing := set(node.after) - numbers:
                yield f"{place}: it waits for operation {min(missing)}, which is not there"
            if node.kind in {"send", "receive"} and node.peer not in self.ranks:
                yield f"{place}: rank {node.peer} is not there"
            if node.kind != "collective":
                continue
            members = self.groups.get(node.group, ())
            if node.collective is None or rank not in members:
                yield f"{place}: group {node.group} does not have rank {rank}, or no collective"
            elif node.splits and (len(node.splits), sum(node.splits)) != (len(members), node.size):
                yield f"{place}: splits do not add up to {node.size} bytes to {len(members)} ranks"
        yield from self.order_faults(rank)

    def order_faults(self, rank: int) -> Iterator[str]:
        """Yield a sentence for a rank whose operations wait for ever."""
        waits = self.dependencies(rank)
        if _is_ordered(waits):  # as in most traces, and found much sooner than a cycle
            return
        try:
            TopologicalSorter(waits).prepare()
        except CycleError as error:
            stuck = min(error.args[1])
            yield f"rank {rank}, operation {stuck}: it waits for itself, through others"

    def dependencies(self, rank: int) -> dict[int, tuple[int, ...]]:
        """Return what each operation waits for, the one before it in its stream included."""
        last: dict[int, int] = {}
        waits = {}
        for node in self.ranks[rank]:
            before = node.after
            if node.stream >= 0:
                if (previous := last.get(node.stream)) is not None and previous not in before:
                    before = (*before, previous)
                last[node.stream] = node.number
            waits[node.number] = before
        return waits

    def meetings(self) -> Iterator[list[tuple[int, Node]]]:
        """Yield the operations that end together, with their ranks.

        They are the ranks' operations of a collective, in the order of the group; those of a
        message, the sender's first; or a single computation. Collectives come first, group by
        group. The n-th operation of one rank meets the n-th of the others.
        """
        met: dict[_Meeting, list[_Members]] = {name: [] for name in self.groups}
        others: list[_Members] = []
        for rank, nodes in self.ranks.items():
            counts = Counter[tuple[NodeKind, _Meeting]]()
            for node in nodes:
                if node.kind == "compute":
                    others.append([(rank, node)])
                    continue
                meeting: _Meeting = node.group
                if node.kind != "collective":
                    ends = (rank, node.peer) if node.kind == "send" else (node.peer, rank)
                    meeting = *ends, node.tag
                index, own = counts[node.kind, meeting], met.setdefault(meeting, [])
                counts[node.kind, meeting] += 1
                if index == len(own):
                    own.append([])
                    if node.kind != "collective":
                        others.append(own[-1])
                own[index].append((rank, node))
        for name, ranks in self.groups.items():
            place = {rank: number for number, rank in enumerate(ranks)}
            for members in met[name]:
                yield sorted(members, key=lambda member: place.get(member[0], 0))
        for members in others:
            yield sorted(members, key=lambda member: member[1].kind == "receive")

    def _calls_of(self, group: str, rank: int) -> Iterator[tuple[CollectiveKind | None, int]]:
        for node in self.ranks.get(rank, ()):
            if node.kind == "collective" and node.group == group:
                yield node.collective, node.root

    def _match_faults(self) -> Iterator[str]:
        for name, members in self.groups.items():
            calls = [list(self._calls_of(name, rank)) for rank in members]
            others = (rank for rank, own in zip(members, calls, strict=True) if own != calls[0])
            if (other := next(others, None)) is not None:
                yield f"group {name}: ranks {members[0]} and {other} call other collectives"
        sizes: defaultdict[tuple[int, int, int], tuple[list[int], list[int]]]
        sizes = defaultdict(lambda: ([], []))
        for rank, nodes in self.ranks.items():
            for node in nodes:
                if node.kind == "send":
                    sizes[rank, node.peer, node.tag][0].append(node.size)
                elif node.kind == "receive":
                    sizes[node.peer, rank, node.tag][1].append(node.size)
        for (source, target, tag), (sends, receives) in sorted(sizes.items()):
            if sends != receives:
                messages = f"{len(sends)} sends, {len(receives)} receives"
                yield f"messages from rank {source} to {target} with tag {tag} differ: {messages}"


def _is_ordered(waits: Mapping[int, tuple[int, ...]]) -> bool:
    """Return whether each operation comes after all that it waits for."""
    earlier = set[int]()
    for number, before in waits.items():
        if not earlier.issuperset(before):
            return False
        earlier.add(number)
    return True
