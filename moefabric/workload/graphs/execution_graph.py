"""Execution graphs: the operations of each rank and their dependencies, as trace files have them.

Readers of all formats return this form, and everything that replays, predicts or plots a trace
takes it. Sizes are bytes of the modelled job.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

NodeKind = Literal["compute", "send", "receive", "collective"]
"""What an operation does."""

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
        nodes = self.ranks[rank]
        waits = {node.number: set(node.after) for node in nodes}
        last: dict[int, int] = {}
        followers: dict[int, list[int]] = {}
        for node in nodes:
            if node.stream >= 0:
                if node.stream in last:
                    waits[node.number].add(last[node.stream])
                last[node.stream] = node.number
        for number, before in waits.items():
            for one in before:
                followers.setdefault(one, []).append(number)
        left = {number: len(before) for number, before in waits.items()}
        ready = [number for number, count in left.items() if not count]
        for number in ready:
            for follower in followers.get(number, ()):
                left[follower] -= 1
                if not left[follower]:
                    ready.append(follower)
        if len(ready) < len(waits):
            stuck = min(number for number, count in left.items() if count)
            yield f"rank {rank}, operation {stuck}: it waits for itself, through others"

    def _match_faults(self) -> Iterator[str]:
        for name, members in self.groups.items():
            calls = {
                rank: [
                    (node.collective, node.root)
                    for node in self.ranks.get(rank, ())
                    if node.kind == "collective" and node.group == name
                ]
                for rank in members
            }
            for rank in members[1:]:
                if calls[rank] != calls[members[0]]:
                    yield f"group {name}: ranks {members[0]} and {rank} call other collectives"
                    break
        sends: dict[tuple[int, int, int], list[int]] = {}
        receives: dict[tuple[int, int, int], list[int]] = {}
        for rank, nodes in self.ranks.items():
            for node in nodes:
                if node.kind == "send":
                    sends.setdefault((rank, node.peer, node.tag), []).append(node.size)
                elif node.kind == "receive":
                    receives.setdefault((node.peer, rank, node.tag), []).append(node.size)
        for source, target, tag in sorted(set(sends) | set(receives)):
            key = source, target, tag
            if sends.get(key) != receives.get(key):
                messages = f"{len(sends.get(key, ()))} sends, {len(receives.get(key, ()))} receives"
                yield f"messages from rank {source} to {target} with tag {tag} differ: {messages}"
