"""Summary of a model: parameters, FLOPs and bytes of a token, bytes of a layer."""

from dataclasses import dataclass
from math import comb

from moefabric.workload.models.model import BACKWARD, Model


@dataclass(frozen=True)
class AllToAllBytes:
    """Bytes that a rank sends the other ranks in one all-to-all of a layer, with even gating.

    Attributes:
        copies: Copies of a token on all ranks, its own rank's among them.
        dispatch: Bytes of the all-to-all to experts.
        combine: Bytes of the all-to-all back.
    """

    copies: float
    dispatch: float
    combine: float


@dataclass(frozen=True)
class ModelSummary:
    """Figures of a model.

    Attributes:
        sequence: Tokens of a sequence.
        tokens: Tokens of a rank.
        ranks: Expert-parallel ranks.
    """

    model: Model
    sequence: int
    tokens: int
    ranks: int

    @property
    def forward_flops(self) -> float:
        """FLOPs of a token in the forward pass."""
        return self.model.token_flops(self.sequence)

    @property
    def training_flops(self) -> float:
        """FLOPs of a token in the forward and the backward pass."""
        return self.forward_flops * (1 + BACKWARD)

    @property
    def each_copy(self) -> AllToAllBytes:
        """All-to-alls that send a token once for each of its experts."""
        return self._all_to_all(self.model.top_k)

    @property
    def once_a_rank(self) -> AllToAllBytes:
        """All-to-alls that send a token once to each rank that has some of its experts.

        A token's experts are drawn evenly. DeepEP sends tokens so.
        """
        experts, top_k = self.model.experts, self.model.top_k
        others = experts - experts // self.ranks
        return self._all_to_all(self.ranks * (1 - comb(others, top_k) / comb(experts, top_k)))

    def _all_to_all(self, copies: float) -> AllToAllBytes:
        leaving = self.tokens * copies * (self.ranks - 1) / self.ranks
        dispatch = leaving * self.model.dispatch_token_bytes
        return AllToAllBytes(copies, dispatch, leaving * self.model.combine_token_bytes)
