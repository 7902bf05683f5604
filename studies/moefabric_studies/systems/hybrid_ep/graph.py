"""Execution graphs of an MoE layer under HybridEP, and under plain expert parallelism.

Each rank has a stream for tokens and computation, and one for experts. The dispatch waits for both.
Plain expert parallelism is the case of domains of one worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from moefabric import ExecutionGraph
from moefabric.api.workloads import CollectiveKind, Node
from moefabric_studies.systems.hybrid_ep.stream_model import Relation, groups

_KINDS: Final[tuple[Relation, ...]] = ("tokens", "experts")
Numbers = tuple[int, ...]
"""Numbers of operations."""


@dataclass(frozen=True)
class HybridEpPass:
    """Forward pass of an MoE layer, and its backward pass if there is one.

    Attributes:
        levels: Workers of each level of the network, outermost first.
        domains: Size of a domain at each level.
        token_bytes: Bytes of a worker's tokens in the all-to-all of each level.
        expert_bytes: Bytes of a worker's experts on the wire.
        forward_s: Seconds of computation before the dispatch.
        backward_s: Seconds of computation of the backward pass; 0 for a forward pass only.
        encode_s: Seconds in which a worker encodes its experts.
        decode_s: Seconds in which a worker decodes the experts of another worker.
        prefetch: Whether experts are gathered during the computation before the dispatch.
        gradient_bytes: Bytes of the gradients of a worker's experts, which each worker of a domain
            sends to the owner; 0 if they are left out, as in the paper's model.
    """

    levels: tuple[int, ...]
    domains: tuple[int, ...]
    token_bytes: tuple[float, ...]
    expert_bytes: float
    forward_s: float
    backward_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    prefetch: bool = True
    gradient_bytes: float = 0.0

    def graph(self, name: str = "") -> ExecutionGraph:
        """Return the operations of all ranks; rank r is worker r."""
        members = {
            f"{kind}-{level}-{group[0]}": group
            for level in range(len(self.levels))
            for kind in _KINDS
            for group in groups(self.levels, self.domains, level, kind)
        }
        ranks = range(prod(self.levels))
        group_of = {
            rank: {key.rpartition("-")[0]: key for key, group in members.items() if rank in group}
            for rank in ranks
        }
        return ExecutionGraph(
            {rank: _RankPass(self, group_of[rank]).nodes() for rank in ranks}, members, name
        )


class _RankPass:
    """The operations of one rank."""

    def __init__(self, layer: HybridEpPass, group_of: dict[str, str]) -> None:
        self._layer, self._group_of = layer, group_of
        self._nodes: list[Node] = []
        self._outwards = tuple(reversed(range(len(layer.levels))))

    def nodes(self) -> tuple[Node, ...]:
        layer = self._layer
        before = self._compute("attention", layer.forward_s, ())
        experts = self._gather(() if layer.prefetch else before)
        inwards, outwards = range(len(layer.levels)), self._outwards
        tokens = self._all_to_alls(outwards, self._all_to_alls(inwards, (*before, *experts)))
        if layer.backward_s:
            arrived = self._all_to_alls(inwards, tokens)
            self._send_gradients(arrived)
            returned = self._all_to_alls(outwards, arrived)
            self._compute("backward", layer.backward_s, returned)
        return tuple(self._nodes)

    def _gather(self, after: Numbers) -> Numbers:
        layer, held = self._layer, self._layer.expert_bytes
        if prod(layer.domains) == 1:
            return ()
        after = self._compute("encode", layer.encode_s, after)
        for level, size in enumerate(layer.domains):
            after = self._collective("experts", level, "all_gather", held, after)
            held *= size
        return self._compute("decode", layer.decode_s * (prod(layer.domains) - 1), after)

    def _all_to_alls(self, levels: Sequence[int], after: Numbers) -> Numbers:
        """Dispatch tokens inwards, or combine them outwards, level after level."""
        for level in levels:
            size = self._layer.token_bytes[level]
            after = self._collective("tokens", level, "all_to_all", size, after)
        return after

    def _send_gradients(self, after: Numbers) -> None:
        """Add up the gradients of each expert at its owner, beside all that follows."""
        layer = self._layer
        held = layer.gradient_bytes * prod(layer.domains)
        for level in self._outwards if layer.gradient_bytes else ():
            after = self._collective("experts", level, "reduce_scatter", held, after)
            held /= layer.domains[level]

    def _compute(self, name: str, seconds: float, after: Numbers) -> Numbers:
        number = len(self._nodes)
        self._nodes.append(Node(number, "compute", name, after, seconds))
        return (number,)

    def _collective(
        self, kind: Relation, level: int, collective: CollectiveKind, size: float, after: Numbers
    ) -> Numbers:
        group = self._group_of.get(f"{kind}-{level}")
        if group is None:
            return after
        number = len(self._nodes)
        node = Node(
            number, "collective", kind, after, size=round(size), collective=collective, group=group
        )
        self._nodes.append(node)
        return (number,)


def distinct_share(places: int, top_k: int) -> float:
    """Return the part of token copies that go to distinct places, for a uniform gate.

    A token that goes to several experts of a place needs to go there once.

    Args:
        places: Data centres, for example.
        top_k: Experts that a token chooses.
    """
    copies: float = places * (1 - (1 - 1 / places) ** top_k) / top_k
    return copies


def plain_pass(
    workers: int, token_bytes: float, forward_s: float, backward_s: float = 0.0
) -> HybridEpPass:
    """Return an MoE layer under plain expert parallelism: one all-to-all of all workers."""
    return HybridEpPass((workers,), (1,), (token_bytes,), 0.0, forward_s, backward_s)
