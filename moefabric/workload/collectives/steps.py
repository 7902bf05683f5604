"""Collects the steps of a rank, and derives their dependencies from the bytes they touch.

An algorithm names the steps of a rank one after another, as if they ran in this order. A step waits
for an earlier one only if both touch the same bytes and one of them writes them. All others may run
at the same time, and additions to the same bytes may follow one another in any order.
"""

from abc import abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from moefabric.workload.collectives.schedule import (
    BufferName,
    Call,
    CollectiveSchedule,
    Extent,
    Schedule,
    Step,
    StepKind,
    Via,
    buffer_sizes,
)

Numbers = tuple[int, ...]
"""Numbers of steps."""

Access = Literal["read", "write", "add"]


@dataclass(frozen=True)
class _Range:
    """The steps that touched some bytes last.

    Attributes:
        writers: The step that wrote them, or the steps that added to them in any order.
        adding: Whether the writers add.
        before: The steps that all these additions wait for.
        readers: Steps that read the bytes since.
    """

    writers: Numbers = ()
    adding: bool = False
    before: Numbers = ()
    readers: Numbers = ()

    def then(self, number: int, access: Access) -> tuple["_Range", Numbers]:
        """Return the range after one more step, and the steps that this step waits for."""
        if access == "read":
            return replace(self, readers=(*self.readers, number)), self.writers
        if access == "add" and self.adding and not self.readers:
            return replace(self, writers=(*self.writers, number)), self.before
        before = (*self.writers, *self.readers)
        return _Range((number,), access == "add", before), before


class _Accesses:
    """The ranges of a buffer, each with the steps that touched it last."""

    def __init__(self) -> None:
        self._starts = [0]
        self._ranges = [_Range()]

    def add(self, number: int, extent: Extent, access: Access) -> set[int]:
        """Add a step; return the earlier steps that it waits for."""
        conflicts: set[int] = set()
        for place in range(self._boundary(extent.offset), self._boundary(extent.end)):
            self._ranges[place], before = self._ranges[place].then(number, access)
            conflicts.update(before)
        return conflicts - {number}

    def _boundary(self, offset: int) -> int:
        """Return the position of the range that starts at an offset; split a range if need be."""
        place = bisect_right(self._starts, offset) - 1
        if self._starts[place] == offset:
            return place
        self._starts.insert(place + 1, offset)
        self._ranges.insert(place + 1, self._ranges[place])
        return place + 1


_ACCESS: Final[dict[StepKind, Access]] = {"send": "read", "receive_add": "add"}
"""Access of a step to its range; other kinds write."""


class RankSteps:
    """The steps of one rank, in the order in which an algorithm names them."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.scratch_bytes = 0
        self._accesses: defaultdict[BufferName, _Accesses] = defaultdict(_Accesses)

    def take_scratch(self, size: int) -> Extent:
        """Return a new range of the scratch buffer."""
        self.scratch_bytes += size
        return Extent("scratch", self.scratch_bytes - size, size)

    def send(
        self, peer: int, extent: Extent, phase: str = "", *, after: Numbers = (), via: Via = ""
    ) -> Numbers:
        """Send a range to a peer; return the step's number, or `after` if the range is empty."""
        return self._add("send", extent, peer, after=after, phase=phase, via=via)

    def receive(
        self, peer: int, extent: Extent, phase: str = "", *, after: Numbers = ()
    ) -> Numbers:
        """Receive a range from a peer."""
        return self._add("receive", extent, peer, after=after, phase=phase)

    def receive_add(
        self, peer: int, extent: Extent, phase: str = "", *, after: Numbers = ()
    ) -> Numbers:
        """Add a range of a peer's numbers to the rank's own."""
        return self._add("receive_add", extent, peer, after=after, phase=phase)

    def copy(
        self, source: Extent, target: Extent, phase: str = "", *, after: Numbers = ()
    ) -> Numbers:
        """Copy a range to another one of the same size."""
        return self._add("copy", target, source=source, after=after, phase=phase)

    def _add(
        self,
        kind: StepKind,
        extent: Extent,
        peer: int = -1,
        *,
        source: Extent | None = None,
        after: Numbers = (),
        phase: str = "",
        via: Via = "",
    ) -> Numbers:
        if not extent.size:
            return after
        number = len(self.steps)
        waits = set(after)
        if source:
            waits |= self._accesses[source.buffer].add(number, source, "read")
        waits |= self._accesses[extent.buffer].add(number, extent, _ACCESS.get(kind, "write"))
        step = Step(number, kind, extent, peer, source, tuple(sorted(waits)), phase, via)
        self.steps.append(step)
        return (number,)


def transfer(
    ranks: Sequence[RankSteps],
    sender: int,
    receiver: int,
    extent: Extent,
    phase: str,
    *,
    to: Extent | None = None,
    add: bool = False,
    after: Numbers = (),
    via: Via = "",
) -> Numbers:
    """Add the steps by which a rank sends a range, and another receives or adds it.

    Args:
        ranks: The steps of each rank.
        sender: The rank that sends.
        receiver: The rank that receives.
        extent: The range of the sender.
        phase: Name of the phase.
        to: The range of the receiver; None for the same as the sender's.
        add: Whether the receiver adds what it receives.
        after: Steps of the sender that end before it sends.
        via: Network that carries the bytes between servers.

    Returns:
        The number of the sending step, or `after` if the range is empty.
    """
    sent = ranks[sender].send(receiver, extent, phase, after=after, via=via)
    receive = ranks[receiver].receive_add if add else ranks[receiver].receive
    receive(sender, to or extent, phase)
    return sent


def move(
    ranks: Sequence[RankSteps], source: int, target: int, extent: Extent, to: Extent, phase: str
) -> Numbers:
    """Transfer a range, or copy it if both ranks are the same and the two ranges aren't.

    Returns:
        The number of the sending step, if there is one.
    """
    if source != target:
        return transfer(ranks, source, target, extent, phase, to=to)
    if to != extent:
        ranks[source].copy(extent, to, phase)
    return ()


class StepwiseSchedule(CollectiveSchedule):
    """A schedule that names the steps of all ranks one after the other."""

    def schedule(self, call: Call) -> Schedule:
        """Return the steps of a collective."""
        ranks = [RankSteps() for _ in range(call.ranks)]
        self.add_steps(call, ranks)
        return schedule_of(self.name, call, ranks)

    @abstractmethod
    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of a collective.

        Args:
            call: The collective.
            ranks: The steps of each rank.
        """


def schedule_of(name: str, call: Call, ranks: Sequence[RankSteps]) -> Schedule:
    """Return the schedule that ranks' steps make.

    Args:
        name: Name of the algorithm.
        call: The collective.
        ranks: The steps of each rank.
    """
    buffers = [buffer_sizes(call, rank) for rank in range(call.ranks)]
    for sizes, rank in zip(buffers, ranks, strict=True):
        if rank.scratch_bytes:
            sizes["scratch"] = rank.scratch_bytes
    return Schedule(name, tuple(tuple(rank.steps) for rank in ranks), tuple(buffers))
