"""The form of a schedule: the steps of each rank, on buffers of that rank.

A step moves, adds or copies one range of bytes. It starts when the steps that it waits for have
ended, so that a schedule runs without a clock or a barrier: a received range starts what needs it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from moefabric.workload.execution_graph import CollectiveKind

StepKind = Literal["send", "receive", "receive_add", "copy"]
"""`receive_add` adds what arrives to what is there; `copy` stays within the rank."""

BufferName = Literal["input", "output", "scratch"]
"""Collectives that work in place use `output` alone: `all_reduce`, `reduce_scatter`, `all_gather`,
`broadcast`, `reduce`. An all-to-all reads `input` and writes `output`."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes of a rank's buffer."""

    buffer: BufferName
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rank.

    Attributes:
        number: Number of the step, unique within its rank.
        kind: What it does.
        extent: The bytes that it sends, or where what arrives or is copied goes.
        peer: Index in the group of the rank that it sends to or receives from.
        source: The bytes that `copy` reads.
        after: Numbers of steps of the same rank that end before this one starts.
        phase: Name of the phase, for timelines and for the time of each phase.
    """

    number: int
    kind: StepKind
    extent: Extent
    peer: int = -1
    source: Extent | None = None
    after: tuple[int, ...] = ()
    phase: str = ""


@dataclass(frozen=True)
class Call:
    """A collective as ranks call it.

    Attributes:
        kind: The collective.
        sizes: Bytes [rank][rank] of an all-to-all, from the row's rank to the column's. Of other
            collectives: one row with one number, `execution_graph.Node.size`.
        ranks: Number of ranks.
        root: Index of the root.
        element: Bytes of a number that reductions add; ranges are cut between numbers.
        servers: Index of each rank's server, for schedules that know servers. Empty: a server each.
        circuits: Pairs of servers that have a circuit, and the NIC of each, for schedules that know
            circuits: (server, server) -> indices of the ranks whose NICs end it, on either side.
    """

    kind: CollectiveKind
    sizes: tuple[tuple[int, ...], ...]
    ranks: int
    root: int = 0
    element: int = 4
    servers: tuple[int, ...] = ()
    circuits: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def server(self, rank: int) -> int:
        """Return the index of a rank's server."""
        return self.servers[rank] if self.servers else rank


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
        """Return the steps of a collective."""
        ...
