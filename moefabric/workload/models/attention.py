"""Sizes of attention: weights, and the tokens to which a token attends."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

Size = Annotated[int, Interval(ge=1, le=1 << 24)]
"""A size of at least one."""
OptionalSize = Annotated[int, Interval(ge=0, le=1 << 24)]
"""A size; 0 without such a part."""

QueryKeyNorm = Literal["none", "head", "all"]
"""Norms of queries and keys: none, one that all heads share, or one over all heads together."""


@dataclass(frozen=True)
class GroupedAttention:
    """Multi-head attention whose heads share keys and values in groups."""

    heads: Size
    """Heads of queries."""
    kv_heads: Size
    """Heads of keys and of values."""
    head_size: Size
    """Size of a head."""
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias."""
    output_bias: bool = False
    """Whether the output has a bias."""
    query_key_norm: QueryKeyNorm = "none"
    """Norms of queries and keys: `none`, one for a `head`, or one over `all` heads."""
    sinks: bool = False
    """Whether each head has a learnt score to which it may attend instead of a token.

    Source: gpt-oss, arXiv 2508.10925, section 2.3.
    """
    window: OptionalSize = 0
    """Tokens to which windowed layers attend at most; 0 without windowed layers."""
    window_share: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Part of the layers that are windowed."""
    window_kind: Literal["sliding", "chunked"] = "sliding"
    """`sliding` is the last tokens; `chunked` begins anew after each window (Llama 4)."""
    kind: Literal["grouped"] = "grouped"
    """Kind of attention."""

    def weights(self, hidden: int) -> int:
        """Return the weights of the matrices: queries, keys, values and output."""
        return 2 * hidden * self.head_size * (self.heads + self.kv_heads)

    def vector_weights(self, hidden: int) -> int:
        """Return the weights of biases, norms and sinks."""
        query, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        norms = {"none": 0, "head": 2 * self.head_size, "all": query + keys}
        biases = self.qkv_bias * (query + 2 * keys) + self.output_bias * hidden
        return biases + norms[self.query_key_norm] + self.sinks * self.heads

    @property
    def score_width(self) -> int:
        """Multiplications of a token with one earlier token: scores and weighted values."""
        return 2 * self.heads * self.head_size

    def attended_tokens(self, sequence: int) -> float:
        """Return the mean number of tokens to which a token attends, over a sequence and layers."""
        if not 0 < self.window < sequence:
            return sequence / 2
        if self.window_kind == "chunked":
            chunks, rest = divmod(sequence, self.window)
            windowed = (chunks * self.window**2 + rest**2) / 2 / sequence
        else:
            windowed = self.window - self.window**2 / 2 / sequence
        return self.window_share * windowed + (1 - self.window_share) * sequence / 2


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: queries, keys and values of low rank (DeepSeek-V2).

    Queries, and keys with values, go through a matrix of low rank each. Keys have a part without
    position, of each head, and one with it, which all heads share (arXiv 2405.04434, section 2.1).
    """

    heads: Size
    """Heads."""
    query_rank: OptionalSize
    """Rank of the queries' matrix; 0 for a matrix of full rank."""
    kv_rank: Size
    """Rank of the keys' and values' matrix."""
    plain_size: Size
    """Size of a head's queries and keys without position."""
    rotary_size: Size
    """Size of a head's queries and keys with position."""
    value_size: Size
    """Size of a head's values."""
    kind: Literal["latent"] = "latent"
    """Kind of attention."""

    def weights(self, hidden: int) -> int:
        """Return the weights: down and up for queries, down and up for keys and values, output."""
        query_size = self.heads * (self.plain_size + self.rotary_size)
        low_rank = self.query_rank * (hidden + query_size)
        queries = low_rank if self.query_rank else hidden * query_size
        kv_down = hidden * (self.kv_rank + self.rotary_size)
        kv_up = self.kv_rank * self.heads * (self.plain_size + self.value_size)
        return queries + kv_down + kv_up + self.heads * self.value_size * hidden

    def vector_weights(self, hidden: int) -> int:  # noqa: ARG002 - as of other attention
        """Return the weights of the norms after the matrices of low rank."""
        return self.query_rank + self.kv_rank

    @property
    def score_width(self) -> int:
        """Multiplications of a token with one earlier token: scores and weighted values."""
        return self.heads * (self.plain_size + self.rotary_size + self.value_size)

    def attended_tokens(self, sequence: int) -> float:
        """Return the mean number of tokens to which a token of a sequence attends."""
        return sequence / 2


Attention = GroupedAttention | LatentAttention
