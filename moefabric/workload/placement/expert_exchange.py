"""Experts that move to the servers of tokens, so that fewer tokens move to the servers of experts.

Exchanges are plug-ins, such as that of HybridEP (arXiv 2510.19470): servers of a domain gather each
other's experts while attention computes, and tokens go to other domains only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix
from moefabric.workload.iterations.iteration import (
    AllReduce,
    Collective,
    Operation,
    Reconfigure,
    Transfer,
)
from moefabric.workload.models.model import BYTES_BF16, Model
from moefabric.workload.placement.collective_order import ORDERED_KINDS

EXPERTS: Final = "experts"
"""Kind of the transfers that move experts."""


Groups = Sequence[Sequence[str]]
"""The servers of each EP group."""


class ExpertExchange(Protocol):
    """Chooses the servers that compute a token's experts, and the experts that move there."""

    @property
    def name(self) -> str:
        """The name that specifications use."""

    @property
    def ratio(self) -> float:
        """Bytes of an expert for each byte of it that moves."""

    @property
    def codec_s(self) -> float:
        """Model seconds by which encoding and decoding experts lengthens attention."""

    def computing(self, servers: int) -> NDArray[np.int64]:
        """Return the server [token's, expert's] that computes, of the servers of an EP group.

        Raises:
            SpecError: If the exchange doesn't suit so many servers.
        """


def with_expert_exchange(
    operations: Iterable[Operation], exchange: ExpertExchange | None, groups: Groups, model: Model
) -> Iterator[Operation]:
    """Move experts beside attention of the forward pass, and only the other tokens.

    The time to compute experts stays that of the servers that own them.

    Args:
        operations: The operations of an iteration.
        exchange: The exchange; None changes nothing.
        groups: The servers of each EP group, in the order of the operations' demands.
    """
    moves = exchange and _ExpertMoves(exchange, groups, model)
    for operation in operations:
        yield moves.changed(operation) if moves else operation


class _ExpertMoves:
    """The change of each operation."""

    def __init__(self, exchange: ExpertExchange, groups: Groups, model: Model) -> None:
        self._exchange = exchange
        self._computing = {tuple(group): exchange.computing(len(group)) for group in groups}
        experts = model.experts / len(groups[0])
        self._bytes = BYTES_BF16 * model.expert_weights * experts / exchange.ratio

    def changed(self, operation: Operation) -> Operation:
        if isinstance(operation, Reconfigure):
            return self._reconfigure(operation)
        if isinstance(operation, AllReduce):
            return operation
        if operation.concurrent is not None:
            operation = replace(operation, concurrent=self._reconfigure(operation.concurrent))
        if isinstance(operation, Collective):
            if operation.kind not in ORDERED_KINDS:
                return operation
            forth = (operation.kind == "dispatch") == (operation.direction == "forward")
            demands = operation.demand, *operation.split_demands
            demand, *split_demands = (self._tokens(one, to_experts=forth) for one in demands)
            return replace(operation, demand=demand, split_demands=tuple(split_demands))
        if (operation.kind, operation.direction) == ("attention", "forward"):
            longer = tuple(s + self._exchange.codec_s for s in operation.seconds)
            return replace(operation, seconds=longer, transfer=self._gather(operation.layer))
        return operation

    def _reconfigure(self, light: Reconfigure) -> Reconfigure:
        return replace(light, demand=self._tokens(light.demand, to_experts=True))

    def _gather(self, layer: int) -> Transfer | None:
        """Return the transfer by which servers of a domain get each other's experts."""
        pairs = tuple(
            (servers[b], servers[a])
            for servers, computing in self._computing.items()
            for a, b in permutations(range(len(servers)), 2)
            if computing[a, b] == a
        )
        return Transfer("forward", pairs, self._bytes, EXPERTS, layer) if pairs else None

    def _tokens(self, demand: DemandMatrix, *, to_experts: bool) -> DemandMatrix:
        """Return the demand of the tokens that still move, to experts or back."""
        index, owed = demand.index, demand.array if to_experts else demand.array.T
        moved = np.zeros_like(owed)
        for servers, computing in self._computing.items():
            if servers[0] not in index:
                continue
            own = np.array([index[server] for server in servers])
            rows = np.broadcast_to(own[:, None], computing.shape)
            np.add.at(moved, (rows, own[computing]), owed[np.ix_(own, own)])
        return DemandMatrix(demand.servers, moved if to_experts else moved.T)
