"""Recursive halving and doubling, and the dissemination barrier: steps between ranks 2^k apart.

An all-reduce halves the bytes with each partner until each rank has the sums of a shard, and
doubles them again (Rabenseifner; Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005, section 4.5). It sends as many bytes as a ring, in
2 log2(n) rounds instead of 2 (n - 1). If the number of ranks is no power of two, the first ranks
pair up: one of each pair adds the other's numbers, and gives it the sums in the end.
"""

from collections.abc import Sequence
from typing import Final

from moefabric.core.errors import SpecError
from moefabric.workload.collectives.schedule import Call, Extent, cut
from moefabric.workload.collectives.steps import Numbers, RankSteps, StepwiseSchedule, transfer


class HalvingDoubling(StepwiseSchedule):
    """All-reduce of any number of ranks; reduce-scatter and all-gather of a power of two."""

    name = "halving-doubling"
    kinds = ("all_reduce", "reduce_scatter", "all_gather")

    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of an all-reduce, a reduce-scatter or an all-gather.

        Raises:
            SpecError: If the last two are of a number of ranks that is no power of two.
        """
        power = 1 << (call.ranks.bit_length() - 1)
        pairs = call.ranks - power
        if pairs and call.kind != "all_reduce":
            fault = f"{call.ranks} ranks are no power of two; ring does any number"
            raise SpecError([(f"schedule {self.name}, {call.kind}", fault)])
        whole = Extent("output", 0, call.size)
        for even in range(0, 2 * pairs, 2):
            transfer(ranks, even, even + 1, whole, "fold", add=True)
        active = [*range(1, 2 * pairs, 2), *range(2 * pairs, call.ranks)]
        if call.kind == "all_reduce":
            shards = cut(whole, power, call.element)
        else:
            shards = tuple(call.shard(rank) for rank in range(power))
        if call.kind != "all_gather":
            _exchange(ranks, active, shards, halves=True)
        if call.kind != "reduce_scatter":
            _exchange(ranks, active, shards, halves=False)
        for even in range(0, 2 * pairs, 2):
            transfer(ranks, even + 1, even, whole, "unfold")


def _exchange(
    ranks: Sequence[RankSteps], active: Sequence[int], shards: Sequence[Extent], *, halves: bool
) -> None:
    """Add the steps that halve the bytes until each active rank has the sums of its shard.

    Or those that double them until each has the shards of all.
    """
    distances = [1 << turn for turn in range(len(active).bit_length() - 1)]
    for distance in reversed(distances) if halves else distances:
        for place, rank in enumerate(active):
            other = place ^ distance
            block = _block(shards, other if halves else place, distance)
            phase = "halving" if halves else "doubling"
            transfer(ranks, rank, active[other], block, phase, add=halves)


def _block(shards: Sequence[Extent], place: int, size: int) -> Extent:
    """Return the aligned block of `size` shards that holds a shard."""
    first = place - place % size
    start = shards[first]
    return Extent(start.buffer, start.offset, shards[first + size - 1].end - start.offset)


class Dissemination(StepwiseSchedule):
    """A barrier in log2(n) rounds, each of one byte to the rank 2^round further on.

    Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
    """

    name = "dissemination"
    kinds = ("barrier",)

    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of a barrier."""
        distances = [1 << turn for turn in range((call.ranks - 1).bit_length())]
        for rank, steps in enumerate(ranks):
            token, arrived = steps.take_scratch(1), Numbers()
            for distance in distances:
                steps.send((rank + distance) % call.ranks, token, "barrier", after=arrived)
                source = (rank - distance) % call.ranks
                arrived += steps.receive(source, steps.take_scratch(1), "barrier")


HALVING_DOUBLING: Final = HalvingDoubling()
DISSEMINATION: Final = Dissemination()
