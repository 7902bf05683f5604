"""Sizes of attention: weights, and the tokens to which a token attends."""

from dataclasses import dataclass
from typing import Literal

QueryKeyNorm = Literal["none", "head", "all"]
"""Norms of queries and keys: none, one that all heads share, or one over all heads together."""


@dataclass(frozen=True)
class GroupedAttention:
    """Sizes of multi-head attention whose heads share keys and values in groups.

    Attributes:
        heads: Heads of queries.
        kv_heads: Heads of keys and of values.
        head_size: Size of a head.
        qkv_bias: Whether queries, keys and values have a bias.
        output_bias: Whether the output has a bias.
        query_key_norm: Norms of queries and keys.
        sinks: Whether each head has a learnt score to which it may attend instead of a token
            (gpt-oss, arXiv 2508.10925, section 2.3).
        window: Tokens to which windowed layers attend at most; 0 without windowed layers.
        window_share: Part of the layers that are windowed.
        window_kind: `sliding` is the last `window` tokens; `chunked` begins anew after each
            `window` tokens (Llama 4).
    """

    heads: int
    kv_heads: int
    head_size: int
    qkv_bias: bool = False
    output_bias: bool = False
    query_key_norm: QueryKeyNorm = "none"
    sinks: bool = False
    window: int = 0
    window_share: float = 1.0
    window_kind: Literal["sliding", "chunked"] = "sliding"

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
        """Return the tokens to which a token attends, in the mean over a sequence and layers."""
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
    """Sizes of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Queries, and keys with values, go through a matrix of low rank each. Keys have a part without
    position, of each head, and one with it, which all heads share.

    Attributes:
        heads: Heads.
        query_rank: Rank of the queries' matrix; 0 for a matrix of full rank.
        kv_rank: Rank of the keys' and values' matrix.
        plain_size: Size of a head's queries and keys without position.
        rotary_size: Size of a head's queries and keys with position.
        value_size: Size of a head's values.
    """

    heads: int
    query_rank: int
    kv_rank: int
    plain_size: int
    rotary_size: int
    value_size: int

    def weights(self, hidden: int) -> int:
        """Return the weights: down and up for queries, down and up for keys and values, output."""
        query_size = self.heads * (self.plain_size + self.rotary_size)
        low_rank = self.query_rank * (hidden + query_size)
        queries = low_rank if self.query_rank else hidden * query_size
        kv_down = hidden * (self.kv_rank + self.rotary_size)
        kv_up = self.kv_rank * self.heads * (self.plain_size + self.value_size)
        return queries + kv_down + kv_up + self.heads * self.value_size * hidden

    def vector_weights(self, hidden: int) -> int:  # noqa: ARG002 - as of other attention
        """Return the weights of the norms of what low rank yields."""
        return self.query_rank + self.kv_rank

    @property
    def score_width(self) -> int:
        """Multiplications of a token with one earlier token: scores and weighted values."""
        return self.heads * (self.plain_size + self.rotary_size + self.value_size)

    def attended_tokens(self, sequence: int) -> float:
        """Return the tokens to which a token attends, in the mean over a sequence."""
        return sequence / 2
