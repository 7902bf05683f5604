"""All-to-alls that know servers: MixNet's five steps, and the hierarchical one of Tutel.

Both gather bytes within the sender's server, send few large messages between servers, and scatter
within the receiver's server.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from moefabric.core.errors import SpecError
from moefabric.workload.collectives.schedule import Call, Extent, Via, cut
from moefabric.workload.collectives.steps import RankSteps, StepwiseSchedule, move, transfer


@dataclass(frozen=True)
class _Fragment:
    """Bytes that a rank owes another: `size` bytes from an offset of their part."""

    source: int
    target: int
    offset: int
    size: int


@dataclass(frozen=True)
class _Message:
    """The fragments that one rank sends another between servers, in order."""

    sender: int
    receiver: int
    via: Via
    fragments: tuple[_Fragment, ...]


class MixNetAllToAll(StepwiseSchedule):
    """The all-to-all of MixNet (section 5.3 of the paper, figure 8).

    1. For each other server, the ranks whose NICs have a circuit to it are the delegates; without
       a circuit, ranks with a NIC on the EPS are.
    2. `gather`: ranks send their bytes for that server to its delegates, evenly over circuits.
    3. `inter-host`: delegates send over circuits and the EPS at the same time.
    4. `intra-host`: meanwhile, ranks of a server exchange their own bytes.
    5. `scatter`: delegates send what arrived to the ranks that it is for.

    A delegate's own bytes are copied, and single ones are sent as they lie.
    """

    name = "mixnet"
    kinds = ("all_to_all",)

    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of an all-to-all."""
        gathered: list[list[int]] = [[] for _ in ranks]
        for message in _messages(call):
            block, arrived = _blocks(call, message, ranks)
            sender, receiver = message.sender, message.receiver
            for fragment, place in zip(message.fragments, _places(message, block), strict=True):
                source, part = fragment.source, _input(call, fragment)
                gathered[source] += move(ranks, source, sender, part, place, "gather")
            transfer(ranks, sender, receiver, block, "inter-host", to=arrived, via=message.via)
            for fragment, place in zip(message.fragments, _places(message, arrived), strict=True):
                move(ranks, receiver, fragment.target, place, _output(call, fragment), "scatter")
        for rank in range(call.ranks):
            ranks[rank].copy(call.input_part(rank, rank), call.output_part(rank, rank), "local")
            for peer in range(call.ranks):
                if peer != rank and call.server(peer) == call.server(rank):
                    part, place = call.input_part(rank, peer), call.output_part(peer, rank)
                    after = tuple(gathered[rank])
                    transfer(ranks, rank, peer, part, "intra-host", to=place, after=after)


def _input(call: Call, fragment: _Fragment) -> Extent:
    part = call.input_part(fragment.source, fragment.target)
    return part.part(fragment.offset, fragment.size)


def _output(call: Call, fragment: _Fragment) -> Extent:
    part = call.output_part(fragment.target, fragment.source)
    return part.part(fragment.offset, fragment.size)


def _blocks(call: Call, message: _Message, ranks: Sequence[RankSteps]) -> tuple[Extent, Extent]:
    """Return where a message leaves from and arrives; take room in the scratch buffers."""
    size = sum(fragment.size for fragment in message.fragments)
    single, several = message.fragments[0], len(message.fragments) > 1
    block, arrived = _input(call, single), _output(call, single)
    if several or message.sender != single.source:
        block = ranks[message.sender].take_scratch(size)
    if several or message.receiver != single.target:
        arrived = ranks[message.receiver].take_scratch(size)
    return block, arrived


def _places(message: _Message, block: Extent) -> Iterator[Extent]:
    """Yield the range of each fragment within the block of its message."""
    offset = 0
    for fragment in message.fragments:
        yield block.part(offset, fragment.size)
        offset += fragment.size


def _messages(call: Call) -> Iterator[_Message]:
    """Yield the messages between servers: over the circuits of a pair, or over the EPS."""
    members = call.members
    with_nic = call.eps_ranks or range(call.ranks)
    eps = {s: [r for r in ranks if r in with_nic] or ranks for s, ranks in members.items()}
    for one, sources in members.items():
        for other, targets in members.items():
            pairs = [(s, t) for s in sources for t in targets if call.sizes[s][t]]
            owed = [_Fragment(s, t, 0, call.sizes[s][t]) for s, t in pairs]
            if one == other or not owed:
                continue
            if ends := call.circuits.get((one, other)):
                for (sender, receiver), own in zip(ends, _divided(owed, len(ends)), strict=True):
                    if own:
                        yield _Message(sender, receiver, "light", tuple(own))
                continue
            by_ranks: defaultdict[tuple[int, int], list[_Fragment]] = defaultdict(list)
            for fragment in owed:
                sender = _delegate(fragment.source, sources, eps[one])
                receiver = _delegate(fragment.target, targets, eps[other])
                by_ranks[sender, receiver].append(fragment)
            for (sender, receiver), own in by_ranks.items():
                yield _Message(sender, receiver, "eps", tuple(own))


def _delegate(rank: int, ranks: Sequence[int], delegates: Sequence[int]) -> int:
    """Return a rank if it is a delegate, or else the delegate that its position gives."""
    return rank if rank in delegates else delegates[ranks.index(rank) % len(delegates)]


def _divided(fragments: Sequence[_Fragment], parts: int) -> Iterator[list[_Fragment]]:
    """Divide whole fragments into parts of equal bytes; a fragment may go to several parts."""
    ends = list(accumulate(one.size for one in fragments))
    for part in cut(Extent("input", 0, ends[-1]), parts, 1):
        own = []
        for one, end in zip(fragments, ends, strict=True):
            start = end - one.size
            first, last = max(start, part.offset), min(end, part.end)
            if first < last:
                own.append(_Fragment(one.source, one.target, first - start, last - first))
        yield own


class HierarchicalAllToAll(StepwiseSchedule):
    """The two-dimensional hierarchical all-to-all of Tutel (MLSys 2023, section 4.3).

    `intra-host`: rank j of a server gets all bytes of its server that go to ranks j of servers.
    `inter-host`: ranks j exchange one message for each pair of servers, as soon as it is complete.
    """

    name = "hierarchical"
    kinds = ("all_to_all",)

    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of an all-to-all.

        Raises:
            SpecError: If servers differ in their numbers of ranks, or ranks of a server are not
                neighbours.
        """
        members = list(call.members.values())
        width = len(members[0])
        ordered = [rank for ranks in members for rank in ranks]
        if ordered != list(range(call.ranks)) or {*map(len, members)} != {width}:
            fault = "each server needs the same number of ranks, with neighbouring numbers"
            raise SpecError([(f"schedule {self.name}", fault)])
        for own in members:
            for local, carrier in enumerate(own):
                for others in members:
                    _to_server(call, ranks, own, carrier, others[local])


def _to_server(
    call: Call, ranks: Sequence[RankSteps], own: Sequence[int], carrier: int, target: int
) -> None:
    """Add the steps from all ranks of a server, by one of them, to a rank."""
    size = sum(call.sizes[rank][target] for rank in own)
    block = arrived = Extent("output", call.output_part(target, own[0]).offset, size)
    if carrier != target:
        block = ranks[carrier].take_scratch(size)
    offset = 0
    for rank in own:
        part = call.input_part(rank, target)
        place = block.part(offset, part.size)
        offset += part.size
        phase = "local" if rank == carrier else "intra-host"
        move(ranks, rank, carrier, part, place, phase)
    move(ranks, carrier, target, block, arrived, "inter-host")


MIXNET: Final = MixNetAllToAll()
HIERARCHICAL: Final = HierarchicalAllToAll()
