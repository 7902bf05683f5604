"""The model that trains: sizes, the bytes of a token, and the duration of layers from FLOPs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, get_args

from annotated_types import Interval

from moefabric.workload.models.payload import WIRE_FORMATS, Payloads, WireType

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
    output_gate: bool = False
    """Whether a gate of each head, a matrix as large as that of queries, weighs its output."""
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
        matrices = 2 * (self.heads + self.kv_heads) + self.output_gate * self.heads
        return hidden * self.head_size * matrices

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


@dataclass(frozen=True)
class HybridAttention:
    """Layers with a gated delta rule, and grouped attention in each `period`-th layer.

    A layer with a delta rule keeps a matrix of keys and values instead of earlier tokens (Gated
    Delta Networks, arXiv 2412.06464; Qwen3-Next). Weights and work are means over the layers.
    """

    grouped: GroupedAttention
    """Attention of each `period`-th layer."""
    period: Size
    """Layers from one with attention to the next."""
    key_heads: Size
    """Heads of queries and of keys in the other layers."""
    key_size: Size
    """Size of these heads."""
    value_heads: Size
    """Heads of values, and matrices of state, in the other layers."""
    value_size: Size
    """Size of a head of values."""
    convolution: Size
    """Tokens over which queries, keys and values are convolved."""
    kind: Literal["hybrid"] = "hybrid"
    """Kind of attention."""

    def weights(self, hidden: int) -> int:
        """Return the weights of the matrices: queries, keys, values, gates and output."""
        keys, values = self.key_heads * self.key_size, self.value_heads * self.value_size
        linear = hidden * (2 * keys + 3 * values + 2 * self.value_heads)
        return self._mean(linear, self.grouped.weights(hidden))

    def vector_weights(self, hidden: int) -> int:
        """Return the weights of convolutions, decays and norms."""
        channels = 2 * self.key_heads * self.key_size + self.value_heads * self.value_size
        linear = channels * self.convolution + 2 * self.value_heads + self.value_size
        return self._mean(linear, self.grouped.vector_weights(hidden))

    def _mean(self, linear: int, grouped: int) -> int:
        return ((self.period - 1) * linear + grouped) // self.period

    @property
    def score_width(self) -> int:
        """Multiplications of a token with one earlier token in layers with attention."""
        return self.grouped.score_width

    def attended_tokens(self, sequence: int) -> float:
        """Return the mean number of tokens to which a token attends.

        A layer with a delta rule reads its state, corrects it and reads it again: it counts as the
        tokens with which attention has as many multiplications.
        """
        state = 3 * self.value_heads * self.key_size * self.value_size
        linear = (self.period - 1) * state / self.score_width
        return (linear + self.grouped.attended_tokens(sequence)) / self.period


Attention = GroupedAttention | LatentAttention | HybridAttention


BYTES_BF16: Final = 2
"""Bytes of a bfloat16 number."""

BACKWARD: Final = 2.0
"""FLOPs of a backward pass, relative to the forward pass: gradients of inputs and of weights."""

Direction = Literal["forward", "backward"]
"""The pass of a micro-batch through the layers."""
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)


@dataclass(frozen=True)
class Model:
    """A Mixture-of-Experts transformer."""

    name: str
    """Name of the model."""
    layers: Annotated[int, Interval(ge=1, le=1000)]
    """Number of MoE layers that are replayed. With several stages, each has whole layers, the first
    ones one more if they can't share evenly."""
    hidden: Size
    """Hidden size."""
    ffn: Size
    """Inner size of one expert, which has three matrices (SwiGLU)."""
    experts: Annotated[int, Interval(ge=1, le=4096)]
    """Number of routed experts of a layer."""
    top_k: Size
    """Routed experts of a token."""
    attention: Attention
    """Sizes of attention."""
    shared_ffn: OptionalSize = 0
    """Inner size of the shared experts together, which compute every token on its own rank."""
    shared_gate: bool = False
    """Whether a gate weighs what shared experts yield."""
    dense_layers: OptionalSize = 0
    """Layers that have a dense block instead of experts.

    They count as if they were before the MoE layers.
    """
    dense_ffn: OptionalSize = 0
    """Inner size of that block."""
    vocabulary: OptionalSize = 0
    """Tokens that the head and the embeddings tell apart; 0 without a head."""
    tied_embeddings: bool = False
    """Whether the head is the embeddings' matrix."""
    expert_bias: bool = False
    """Whether the matrices of routed experts have a bias."""
    router_bias: bool = False
    """Whether the router has a bias for each expert."""
    dispatch_type: WireType = "bf16"
    """Form of numbers on their way to experts, and of their gradients."""
    combine_type: WireType = "bf16"
    """Form of numbers on their way back from experts."""
    node_limit: OptionalSize = 0
    """The most nodes (servers) to which a token goes, once to each; 0 for no limit: a token goes to
    each of its experts.

    Source: DeepSeek-V3, sections 2.1.2 and 3.2.2.
    """
    whole_layers: OptionalSize = 0
    """MoE layers of the whole model. If fewer are replayed, an iteration has as large a part of the
    head, the embeddings and the layers without experts. 0: as many as are replayed."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What the configuration of which the model was read leaves open, in sentences."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's activations between stages and in tensor parallelism (bfloat16)."""
        return self.hidden * BYTES_BF16

    @property
    def dispatch_token_bytes(self) -> int:
        """Bytes of one token on its way to an expert."""
        return WIRE_FORMATS[self.dispatch_type].bytes(self.hidden)

    @property
    def combine_token_bytes(self) -> int:
        """Bytes of one token on its way back from an expert."""
        return WIRE_FORMATS[self.combine_type].bytes(self.hidden)

    @property
    def combine_ratio(self) -> float:
        """Bytes that come back from experts, relative to the bytes that go there."""
        return self.combine_token_bytes / self.dispatch_token_bytes

    @property
    def attention_weights(self) -> int:
        """Weights of one attention block's matrices."""
        return self.attention.weights(self.hidden)

    @property
    def expert_weights(self) -> int:
        """Weights of one routed expert: three matrices of hidden x ffn."""
        return 3 * self.hidden * self.ffn

    @property
    def replicated_weights(self) -> int:
        """Weights of an MoE layer that all ranks hold: attention, router and shared expert."""
        router, shared = self.hidden * self.experts, 3 * self.hidden * self.shared_ffn
        return self.attention_weights + router + shared

    @property
    def dense_layer_weights(self) -> int:
        """Weights of a layer without experts."""
        return self.attention_weights + 3 * self.hidden * self.dense_ffn

    @property
    def head_weights(self) -> int:
        """Weights of the head, and of the embedding."""
        return self.hidden * self.vocabulary

    @property
    def replayed_part(self) -> float:
        """Part of the whole model that the replayed layers are."""
        return self.layers / max(self.layers, self.whole_layers)

    @property
    def outer_weights(self) -> tuple[float, float]:
        """Replayed weights before the MoE layers, and after them.

        Before them are the embeddings and the layers without experts, after them is the head.
        """
        dense = self.dense_layers * self.dense_layer_weights
        head = 0 if self.tied_embeddings else self.head_weights
        return self.replayed_part * (self.head_weights + dense), self.replayed_part * head

    @property
    def weights(self) -> int:
        """Weights of all matrices."""
        return self._matrix_weights(self.experts)

    @property
    def active_weights(self) -> int:
        """Weights of the matrices with which a token is computed, and its embedding's table."""
        return self._matrix_weights(self.top_k)

    @property
    def parameters(self) -> int:
        """All parameters: matrices, norms and biases."""
        return self.weights + self._vector_weights(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters with which a token is computed, and its embedding's table."""
        return self.active_weights + self._vector_weights(self.top_k)

    def _matrix_weights(self, experts: int) -> int:
        """Return the weights of embeddings and matrices, with `experts` in each layer."""
        layer = self.replicated_weights + experts * self.expert_weights
        dense = self.dense_layers * self.dense_layer_weights
        head = self.head_weights * (1 if self.tied_embeddings else 2)
        return self.layers * layer + dense + head

    def _vector_weights(self, experts: int) -> int:
        """Return the weights of norms, biases and gates, with a number of experts in each layer."""
        block = self.attention.vector_weights(self.hidden) + 2 * self.hidden
        expert = self.expert_bias * (2 * self.ffn + self.hidden)
        router = self.router_bias * self.experts + self.shared_gate * self.hidden
        layers = self.layers + self.dense_layers
        return layers * block + self.layers * (experts * expert + router) + self.hidden

    def score_flops(self, sequence: int) -> float:
        """Return the forward FLOPs of a token's scores, over the earlier tokens it attends to."""
        return 2 * self.attention.score_width * self.attention.attended_tokens(sequence)

    def attention_flops(self, sequence: int) -> float:
        """Return the forward FLOPs of one attention block for a token: matrices and scores."""
        return 2 * self.attention_weights + self.score_flops(sequence)

    def replicated_flops(self, sequence: int) -> float:
        """Return a token's forward FLOPs on its own rank: attention, router, shared expert."""
        return 2 * self.replicated_weights + self.score_flops(sequence)

    def dense_layer_flops(self, sequence: int) -> float:
        """Return the forward FLOPs of a layer without experts for a token."""
        return 2 * self.dense_layer_weights + self.score_flops(sequence)

    def expert_flops(self) -> float:
        """Return the forward FLOPs of one routed expert for a token."""
        return 2 * self.expert_weights

    def head_flops(self) -> float:
        """Return the forward FLOPs of the head for a token."""
        return 2 * self.head_weights

    def token_flops(self, sequence: int) -> float:
        """Return the forward FLOPs of a token in the whole model.

        Args:
            sequence: Tokens of a sequence; a token attends to half of them in the mean.
        """
        layer = self.replicated_flops(sequence) + self.top_k * self.expert_flops()
        dense = self.dense_layers * self.dense_layer_flops(sequence)
        return self.layers * layer + dense + self.head_flops()

    def errors(self) -> Iterator[tuple[str, str]]:
        """Yield the contradictions between sizes: name of the size, and the error."""
        if self.top_k > self.experts:
            yield "top_k", f"{self.top_k} experts of a token, but a layer has {self.experts}"
        if self.dense_layers and not self.dense_ffn:
            yield "dense_ffn", f"is missing: {self.dense_layers} layers have no experts"
        if 0 < self.whole_layers < self.layers:
            yield "whole_layers", f"{self.whole_layers} layers, but {self.layers} are replayed"
        if self.node_limit > self.top_k:
            yield "node_limit", f"{self.node_limit} servers of a token with {self.top_k} experts"
        attention = self.attention
        if isinstance(attention, HybridAttention):
            attention = attention.grouped
        if isinstance(attention, GroupedAttention) and attention.heads % attention.kv_heads:
            heads = f"{attention.heads} heads don't share {attention.kv_heads} keys evenly"
            yield "attention.kv_heads", heads


ComputeModel = Literal["flops", "roofline"]
"""What computation lasts as long as: its FLOPs, or what memory moves, too."""
Moved = tuple[float, float]
"""Numbers that pass the memory of a rank's GPUs: those that they share, and those of each GPU."""

COUNT_BYTES: Final = 8
"""Bytes of a number of tokens."""
OPTIMISER_BYTES: Final = 28
"""Bytes of memory that Adam reads and writes for a weight in mixed precision.

It reads a gradient in bfloat16, and a weight and two moments in float32; it writes the latter
three, and the weight in bfloat16 (Megatron-LM).
"""


@dataclass(frozen=True)
class CountExchange:
    """The exchange of how many tokens each rank has for each expert: an all-gather in a ring.

    Attributes:
        rounds: Messages that a rank passes on, one after the other.
        bytes: Bytes of a message: the numbers of one rank.
        latency_s: Seconds of a message without bytes.
    """

    rounds: int
    bytes: float
    latency_s: float

    def seconds(self, rate_bps: float) -> float:
        """Return its duration over NICs of this payload rate, in bits per second."""
        return self.rounds * (self.latency_s + 8 * self.bytes / rate_bps)


@dataclass(frozen=True)
class Training:
    """Parallelism, batch sizes and GPUs of a training job.

    Attributes:
        ep: Expert-parallel ranks of an EP group.
        tp: GPUs of a rank (tensor parallelism).
        sequence: Tokens of a sequence.
        micro_batch: Sequences of a micro-batch.
        gpu_flops: Peak FLOPs per second of a GPU.
        utilisation: Part of the peak that is reached.
        nvlink_bytes_s: Bytes per second of a GPU's NVLinks in each direction. The default is the
            NVSwitch of the paper's simulation: 900 GB/s both ways together (section 7.1).
        recomputation: Whether the backward pass of a layer repeats the computation of the forward
            pass instead of keeping its results. Tokens that experts received are kept, so
            all-to-alls aren't repeated. The paper doesn't mention recomputation.
        payloads: The form of tokens in all-to-alls.
        gradient_sums: Whether servers sum the gradients of weights that they replicate.
        message_latency_s: Seconds of a small message between ranks in the exchange of token counts;
            None if there is no such exchange.
        whole_model: Whether an iteration has more than the MoE layers: layers without experts, the
            head, embeddings, and the optimiser.
        memory_bytes_s: Bytes per second of a GPU's memory. The default is that of an A100 of 80 GB.
        compute: With `flops`, computation lasts as long as its FLOPs. With `roofline`, matrices
            last at least until memory has moved their weights, inputs and outputs, and what is
            computed number by number (norms, residuals, SwiGLU, the order of tokens) lasts until
            memory has moved that. A backward pass moves twice as much. Scores stay on the chip.
    """

    ep: int
    tp: int
    sequence: int
    micro_batch: int
    gpu_flops: float
    utilisation: float
    nvlink_bytes_s: float = 450e9
    recomputation: bool = False
    payloads: Payloads = field(default_factory=Payloads)
    gradient_sums: bool = True
    message_latency_s: float | None = None
    whole_model: bool = False
    memory_bytes_s: float = 2039e9
    compute: ComputeModel = "flops"

    @property
    def rank_tokens(self) -> int:
        """Tokens that one rank sends through a layer in one micro-batch."""
        return self.sequence * self.micro_batch

    @property
    def rank_flops(self) -> float:
        """FLOPs per second of the GPUs of one rank."""
        return self.tp * self.gpu_flops * self.utilisation

    def dispatch_token_bytes(self, model: Model) -> float:
        """Return the bytes of one token on its way to an expert, in the form of its payload."""
        plain = model.dispatch_token_bytes
        return self.payloads.dispatch.token_bytes(model.hidden, plain)

    def combine_token_bytes(self, model: Model) -> float:
        """Return the bytes of one token on its way back."""
        return self.payloads.combine.token_bytes(model.hidden, model.combine_token_bytes)

    def combine_ratio(self, model: Model) -> float:
        """Return the bytes that come back from experts, relative to the bytes that go there."""
        return self.combine_token_bytes(model) / self.dispatch_token_bytes(model)

    def token_counts(self, model: Model) -> CountExchange | None:
        """Return the exchange of token counts before a forward dispatch; None without one."""
        if self.message_latency_s is None:
            return None
        return CountExchange(self.ep - 1, COUNT_BYTES * model.experts, self.message_latency_s)

    def tensor_all_reduce_bytes(self, model: Model) -> float:
        """Return the bytes that a GPU sends in an all-reduce of its rank's tokens, in a ring.

        A layer has four: after attention and after the experts, forward and backward (Megatron-LM,
        arXiv 1909.08053, section 3).
        """
        return 2 * (self.tp - 1) / self.tp * self.rank_tokens * model.token_bytes

    def tensor_all_reduce_s(self, model: Model) -> float:
        """Return the seconds of one such all-reduce."""
        return self.tensor_all_reduce_bytes(model) / self.nvlink_bytes_s

    def attention_s(self, model: Model, direction: Direction = "forward") -> float:
        """Return the seconds of a layer on its tokens' own rank, before and beside the experts.

        These are attention, router, shared expert, the all-reduce of tensor parallelism, and the
        matrices and the coding of payloads there: what is sent, and what has come back.
        """
        token_flops = model.replicated_flops(self.sequence)
        flops = self.rank_tokens * (token_flops + self.payloads.source_flops(model.hidden))
        # Each token is sent once for each expert or node.
        copies = self.rank_tokens * min(model.node_limit or model.top_k, model.top_k)
        coding_s = self._coding_s(model, copies, self.payloads.source_s_per_byte)
        ordered = 2 * (self.rank_tokens + copies) * model.hidden
        weights, ffn = model.replicated_weights, model.shared_ffn
        seconds = self._block_s(model, flops, weights, ffn, direction, ordered)
        return seconds + self._all_reduces_s(model, direction) + coding_s

    def expert_s(self, model: Model, tokens: float, direction: Direction = "forward") -> float:
        """Return the seconds of a rank's experts for their tokens, of coding, and all-reduce."""
        flops = tokens * model.expert_flops()
        coding_s = self._coding_s(model, tokens, self.payloads.expert_s_per_byte)
        weights = model.experts / self.ep * model.expert_weights
        matrices = weights + tokens * 3 * model.ffn, tokens * 2 * model.hidden
        others = tokens * (3 * model.ffn + 4 * model.hidden), 0.0
        seconds = self._seconds(flops, direction, matrices, others)
        return seconds + self._all_reduces_s(model, direction) + coding_s

    def dense_layer_s(self, model: Model, direction: Direction = "forward") -> float:
        """Return the seconds of a layer without experts, with its two all-reduces."""
        flops = self.rank_tokens * model.dense_layer_flops(self.sequence)
        weights, ffn = model.dense_layer_weights, model.dense_ffn
        seconds = self._block_s(model, flops, weights, ffn, direction)
        return seconds + 2 * self._all_reduces_s(model, direction)

    def head_s(self, model: Model, direction: Direction = "forward") -> float:
        """Return the seconds of the head, which is never recomputed."""
        logits, hidden = self.rank_tokens * model.vocabulary, self.rank_tokens * model.hidden
        flops, matrices = (
            self.rank_tokens * model.head_flops(),
            (model.head_weights + logits, hidden),
        )
        passes = 1.0 if direction == "forward" else BACKWARD
        return passes * self._forward_s(flops, matrices, (2 * logits, 0.0))

    def optimiser_s(self, model: Model, layers: int, outer_weights: float) -> float:
        """Return the seconds in which each GPU updates its weights: those of memory (Adam).

        Args:
            model: The model.
            layers: MoE layers whose weights the rank has.
            outer_weights: Its weights outside of MoE layers.
        """
        layer = model.replicated_weights + model.experts / self.ep * model.expert_weights
        weights = (layers * layer + outer_weights) / self.tp
        return OPTIMISER_BYTES * weights / self.memory_bytes_s

    def _coding_s(self, model: Model, tokens: float, s_per_byte: tuple[float, float]) -> float:
        """Return the seconds in which a rank's GPUs code tokens that go out and come back."""
        going, returning = s_per_byte
        plain_s = going * model.dispatch_token_bytes + returning * model.combine_token_bytes
        return tokens * plain_s / self.tp

    def _block_s(
        self,
        model: Model,
        forward_flops: float,
        weights: float,
        ffn: float,
        direction: Direction,
        ordered: float = 0.0,
    ) -> float:
        """Return the seconds of attention, with a block of inner size `ffn` on all tokens.

        Two norms read and write each token, two residuals read two and write one.
        """
        tokens, inner = self.rank_tokens, self.rank_tokens * 3 * ffn
        heads = tokens * model.attention_weights / model.hidden
        matrices = weights + heads + inner, tokens * 4 * model.hidden
        others = inner + ordered, tokens * 10 * model.hidden
        return self._seconds(forward_flops, direction, matrices, others)

    def _seconds(
        self, forward_flops: float, direction: Direction, matrices: Moved, others: Moved
    ) -> float:
        passes = 1.0 if direction == "forward" else BACKWARD + self.recomputation
        return passes * self._forward_s(forward_flops, matrices, others)

    def _forward_s(self, flops: float, matrices: Moved, others: Moved) -> float:
        flops_s = flops / self.rank_flops
        if self.compute == "flops":
            return flops_s
        return max(flops_s, self._memory_s(matrices)) + self._memory_s(others)

    def _memory_s(self, moved: Moved) -> float:
        shared, whole = moved
        return BYTES_BF16 * (shared / self.tp + whole) / self.memory_bytes_s

    def _all_reduces_s(self, model: Model, direction: Direction) -> float:
        repeated = direction == "backward" and self.recomputation
        return (1 + repeated) * self.tensor_all_reduce_s(model)
