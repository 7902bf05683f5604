"""The form of a schedule: the steps of each rank, on buffers of that rank.

A step moves, adds or copies one range of bytes. It starts when the steps that it waits for have
ended, so that a schedule runs without a clock or a barrier: a received range starts what needs it.

Where each collective has its bytes (`buffer_sizes`), with ranks in the group's order:

| collective | before | after |
|---|---|---|
| `all_to_all` | `input`: the parts for each rank | `output`: the parts from each rank |
| `all_reduce` | `output`: the rank's numbers | `output`: the sums |
| `reduce_scatter` | `output`: the rank's numbers | the rank's shard of `output`: the sums |
| `all_gather` | the rank's shard of `output` | `output`: all shards |
| `broadcast` | the root's `output` | `output` |
| `reduce` | `output`: the rank's numbers | the root's `output`: the sums |
| `gather` | `input`: the rank's part | the root's `output`: all parts |
| `scatter` | the root's `input`: all parts | `output`: the rank's part |
| `barrier` | nothing | nothing |

Bytes that the table doesn't name after a collective may hold partial results.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal, Protocol

from moefabric.core.errors import SpecError
from moefabric.workload.graphs.execution_graph import CollectiveKind

StepKind = Literal["send", "receive", "receive_add", "copy"]
"""`receive_add` adds what arrives to what is there, number by number, so that several of them may
add to the same bytes at the same time; `copy` stays within the rank."""

BufferName = Literal["input", "output", "scratch"]

Via = Literal["", "light", "eps"]
"""Network that carries bytes between servers: circuits, the EPS, or as the split says."""

REDUCTIONS: Final[frozenset[CollectiveKind]] = frozenset({"all_reduce", "reduce_scatter", "reduce"})
"""The collectives that add numbers."""

Sizes = tuple[tuple[int, ...], ...]
"""Sizes of a call, as `Call` has them."""
Servers = tuple[int, int]
"""A pair of servers, by their indices."""
Ranks = tuple[int, int]
"""A pair of ranks, by their indices in the group."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes of a rank's buffer."""

    buffer: BufferName
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the range."""
        return self.offset + self.size

    def part(self, offset: int, size: int) -> "Extent":
        """Return a range within this one; the offset counts from its start."""
        return Extent(self.buffer, self.offset + offset, size)


@dataclass(frozen=True, slots=True)
class Step:
    """Step of a rank.

    Attributes:
        number: Number of the step: its position in the rank's tuple.
        kind: What it does.
        extent: The bytes that it sends, or where what arrives or is copied goes.
        peer: Index in the group of the rank that it sends to or receives from.
        source: The bytes that `copy` reads.
        after: Numbers of earlier steps of the same rank that end before this one starts.
        phase: Name of the phase, for timelines and for the time of each phase.
        via: Network that carries the bytes of a `send` between servers.
    """

    number: int
    kind: StepKind
    extent: Extent
    peer: int = -1
    source: Extent | None = None
    after: tuple[int, ...] = ()
    phase: str = ""
    via: Via = ""


@dataclass(frozen=True)
class Call:
    """A collective as ranks call it.

    Attributes:
        sizes: Bytes [rank][rank] of an all-to-all, from the row's rank to the column's. Of other
            collectives: one row with one number, `execution_graph.Node.size`.
        ranks: Number of ranks.
        root: Index of the root.
        element: Bytes of a number that reductions add; ranges are cut between numbers.
        servers: Index of each rank's server, for schedules that know servers. Empty: a server each.
        circuits: The circuits of each ordered pair of servers, for schedules that know circuits:
            (rank whose NIC ends the circuit on the first server, rank on the second).
        eps_ranks: Ranks whose NIC ends on the EPS. Empty: all.
    """

    kind: CollectiveKind
    sizes: Sizes
    ranks: int
    root: int = 0
    element: int = 4
    servers: tuple[int, ...] = ()
    circuits: Mapping[Servers, tuple[Ranks, ...]] = field(default_factory=dict)
    eps_ranks: tuple[int, ...] = ()

    def __hash__(self) -> int:
        """Hash all but the circuits."""
        return hash((self.kind, self.sizes, self.ranks, self.root, self.element, self.servers))

    @property
    def size(self) -> int:
        """Bytes of a collective that isn't an all-to-all."""
        return self.sizes[0][0]

    def server(self, rank: int) -> int:
        """Return the index of a rank's server."""
        return self.servers[rank] if self.servers else rank

    @property
    def members(self) -> dict[int, list[int]]:
        """The ranks of each server."""
        members: defaultdict[int, list[int]] = defaultdict(list)
        for rank in range(self.ranks):
            members[self.server(rank)].append(rank)
        return dict(members)

    def input_part(self, rank: int, peer: int) -> Extent:
        """Return the bytes of an all-to-all that a rank owes another, in the input."""
        row = self.sizes[rank]
        return Extent("input", sum(row[:peer]), row[peer])

    def output_part(self, rank: int, peer: int) -> Extent:
        """Return where a rank of an all-to-all has the bytes of another, in the output."""
        before = sum(row[rank] for row in self.sizes[:peer])
        return Extent("output", before, self.sizes[peer][rank])

    def shard(self, rank: int) -> Extent:
        """Return a rank's shard of the output: equal numbers, or one more on the first ranks."""
        if self.kind == "all_gather":
            return Extent("output", rank * self.size, self.size)
        return cut(Extent("output", 0, self.size), self.ranks, self.element)[rank]

    def faults(self) -> Iterator[str]:
        """Yield a sentence for each contradiction in the call."""
        square = [len(row) for row in self.sizes] == [self.ranks] * self.ranks
        if self.ranks < 1:
            yield "it has no ranks"
        elif self.kind == "all_to_all" and not square:
            yield f"the sizes of an all-to-all are not {self.ranks} rows of {self.ranks} numbers"
        elif self.kind != "all_to_all" and [len(row) for row in self.sizes] != [1]:
            yield "its sizes are not one row with one number"
        elif min(min(row) for row in self.sizes) < 0:
            yield "a size is negative"
        elif self.kind in REDUCTIONS and self.size % self.element:
            yield f"{self.size} bytes are not whole numbers of {self.element} bytes"
        if not 0 <= self.root < max(self.ranks, 1):
            yield f"root {self.root} is not one of {self.ranks} ranks"
        if self.servers and len(self.servers) != self.ranks:
            yield f"{len(self.servers)} servers are given for {self.ranks} ranks"


@dataclass(frozen=True)
class Schedule:
    """The steps of a collective.

    The n-th send of a rank to a peer matches the n-th receive of that peer from the rank, both in
    the order of their tuples.

    Attributes:
        name: Name of the algorithm.
        steps: Steps of each rank, by its index in the group.
        buffers: Bytes of each rank's buffers, by name.
    """

    name: str
    steps: tuple[tuple[Step, ...], ...]
    buffers: tuple[Mapping[BufferName, int], ...]


class CollectiveSchedule(Protocol):
    """An algorithm for one or more collectives; plug-ins of the group `moefabric.schedules`."""

    name: str
    kinds: Sequence[CollectiveKind]

    def schedule(self, call: Call) -> Schedule:
        """Return the steps of a collective.

        Raises:
            SpecError: If the algorithm can't do this call.
        """


def buffer_sizes(call: Call, rank: int) -> dict[BufferName, int]:
    """Return the bytes of a rank's `input` and `output`, without those that are empty."""
    sizes: dict[BufferName, int] = {}
    if call.kind == "all_to_all":
        sizes = {"input": sum(call.sizes[rank]), "output": sum(row[rank] for row in call.sizes)}
    elif call.kind == "gather":
        sizes = {"input": call.size, "output": call.size * call.ranks if rank == call.root else 0}
    elif call.kind == "scatter":
        sizes = {"input": call.size if rank == call.root else 0, "output": call.shard(rank).size}
    elif call.kind == "all_gather":
        sizes = {"output": call.size * call.ranks}
    elif call.kind != "barrier":
        sizes = {"output": call.size}
    return {name: size for name, size in sizes.items() if size}


def cut(extent: Extent, parts: int, element: int) -> tuple[Extent, ...]:
    """Cut a range between numbers into parts that differ by one number at most.

    Bytes that are no whole number stay with the last part.
    """
    count, rest = divmod(extent.size, element)
    whole, more = divmod(count, parts)
    sizes = [(whole + (part < more)) * element for part in range(parts)]
    sizes[-1] += rest
    starts = (0, *accumulate(sizes[:-1]))
    return tuple(extent.part(start, size) for start, size in zip(starts, sizes, strict=True))


def schedule_call(algorithm: CollectiveSchedule, call: Call) -> Schedule:
    """Return the steps of a collective by an algorithm.

    Raises:
        SpecError: If the call is impossible, or the algorithm doesn't do this collective.
    """
    place = f"schedule {algorithm.name}"
    if faults := [(place, fault) for fault in call.faults()]:
        raise SpecError(faults)
    if call.kind not in algorithm.kinds:
        kinds = ", ".join(algorithm.kinds)
        raise SpecError([(place, f"it has no {call.kind}, only {kinds}")])
    return algorithm.schedule(call)
