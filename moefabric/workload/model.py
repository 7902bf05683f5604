"""The model that trains: sizes, the bytes of a token, and the duration of layers from FLOPs."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

BYTES_BF16: Final = 2
"""Bytes of a bfloat16 number."""

BACKWARD: Final = 2.0
"""FLOPs of a backward pass, relative to the forward pass: gradients of inputs and of weights."""

_FP8_BLOCK: Final = 128
"""Numbers that share a scale in FP8 (DeepSeek-V3, arXiv 2412.19437, section 3.3.2)."""
_FP8_SCALE_BYTES: Final = 4
"""Bytes of the scale of a block (float32, as DeepEP sends it)."""

Direction = Literal["forward", "backward"]
"""The pass of a micro-batch through the layers."""
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Queries, and keys with values, go through a matrix of low rank each. Keys have a part without
    position, of each head, and one with it, which all heads share.

    Attributes:
        heads: Heads.
        query_rank: Rank of the queries' matrix.
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
        queries = self.query_rank * (hidden + self.heads * (self.plain_size + self.rotary_size))
        kv_down = hidden * (self.kv_rank + self.rotary_size)
        kv_up = self.kv_rank * self.heads * (self.plain_size + self.value_size)
        return queries + kv_down + kv_up + self.heads * self.value_size * hidden

    @property
    def score_width(self) -> int:
        """Multiplications of a token with one earlier token: scores and weighted values."""
        return self.heads * (self.plain_size + self.rotary_size + self.value_size)


@dataclass(frozen=True)
class Model:
    """A Mixture-of-Experts transformer.

    Attributes:
        name: A name of `MODELS`, or the user's own.
        layers: MoE layers.
        hidden: Hidden size.
        ffn: Inner size of one expert, which has three matrices (SwiGLU).
        experts: Routed experts of a layer.
        top_k: Routed experts of a token.
        kv_hidden: Size of keys and of values in grouped-query attention; queries have the hidden
            size.
        latent: Sizes of latent attention, if the model has it instead.
        shared_ffn: Inner size of the shared expert, which computes every token on its own rank.
        dense_layers: Layers before the MoE layers that have a dense block instead of experts.
        dense_ffn: Inner size of that block.
        vocabulary: Tokens that the head tells apart, and embeddings.
        fp8_dispatch: Whether tokens go to experts in FP8 with scales, and gradients alike; what
            comes back is bfloat16 (DeepSeek-V3, section 3.3.3).
        node_limit: The most nodes (servers) to which a token goes, once to each of them whatever
            the number of its experts there (DeepSeek-V3, sections 2.1.2 and 3.2.2). With 0, a token
            goes to each of its experts.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    experts: int
    top_k: int
    kv_hidden: int
    latent: LatentAttention | None = None
    shared_ffn: int = 0
    dense_layers: int = 0
    dense_ffn: int = 0
    vocabulary: int = 0
    fp8_dispatch: bool = False
    node_limit: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's activations (bfloat16): of a combine and between stages."""
        return self.hidden * BYTES_BF16

    @property
    def dispatch_token_bytes(self) -> int:
        """Bytes of one token on its way to an expert."""
        if self.fp8_dispatch:
            return self.hidden + self.hidden // _FP8_BLOCK * _FP8_SCALE_BYTES
        return self.token_bytes

    @property
    def combine_ratio(self) -> float:
        """Bytes that come back from experts, relative to the bytes that go there."""
        return self.token_bytes / self.dispatch_token_bytes

    @property
    def attention_weights(self) -> int:
        """Weights of one attention block."""
        if self.latent is not None:
            return self.latent.weights(self.hidden)
        return 2 * self.hidden * (self.hidden + self.kv_hidden)

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
        """Weights of the head; the embedding has as many."""
        return self.hidden * self.vocabulary

    @property
    def weights(self) -> int:
        """All weights but those of norms and biases."""
        layer = self.replicated_weights + self.experts * self.expert_weights
        dense = self.dense_layers * self.dense_layer_weights
        return self.layers * layer + dense + 2 * self.head_weights

    @property
    def active_weights(self) -> int:
        """Weights with which a token is computed, and its embedding's table."""
        layer = self.replicated_weights + self.top_k * self.expert_weights
        dense = self.dense_layers * self.dense_layer_weights
        return self.layers * layer + dense + 2 * self.head_weights

    def score_flops(self, sequence: int) -> float:
        """Return the forward FLOPs of a token's scores, over half the (causal) sequence."""
        width = 2 * self.hidden if self.latent is None else self.latent.score_width
        return 2 * width * sequence / 2

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


ModelName = Literal["mixtral-8x7b", "mixtral-8x22b", "llama-moe", "qwen-moe", "deepseek-r1"]
"""The names of `MODELS`."""

MODELS: Final[dict[str, Model]] = {
    model.name: model
    for model in (
        Model("mixtral-8x7b", 32, 4096, 14336, 8, 2, 1024, vocabulary=32000),
        Model("mixtral-8x22b", 56, 6144, 16384, 8, 2, 1024, vocabulary=32000),
        Model("llama-moe", 32, 4096, 688, 16, 4, 4096, vocabulary=32000),
        Model("qwen-moe", 24, 2048, 1408, 64, 4, 2048, shared_ffn=5632, vocabulary=151936),
        Model(
            "deepseek-r1",
            layers=58,
            hidden=7168,
            ffn=2048,
            experts=256,
            top_k=8,
            kv_hidden=0,
            latent=LatentAttention(128, 1536, 512, 128, 64, 128),
            shared_ffn=2048,
            dense_layers=3,
            dense_ffn=18432,
            vocabulary=129280,
            fp8_dispatch=True,
            node_limit=4,
        ),
    )
}
"""Sizes of `config.json` of mistralai/Mixtral-8x7B-v0.1, mistralai/Mixtral-8x22B-v0.1,
llama-moe/LLaMA-MoE-v1-3_5B-4_16, Qwen/Qwen1.5-MoE-A2.7B and deepseek-ai/DeepSeek-R1 on Hugging
Face.

Qwen-MoE has 60 experts there, and 64 as the paper counts them (arXiv 2501.03905, table 1).
DeepSeek-R1 is DeepSeek-V3 of another training; its layer for multi-token prediction isn't counted.
"""


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
    """

    ep: int
    tp: int
    sequence: int
    micro_batch: int
    gpu_flops: float
    utilisation: float
    nvlink_bytes_s: float = 450e9
    recomputation: bool = False

    @property
    def rank_tokens(self) -> int:
        """Tokens that one rank sends through a layer in one micro-batch."""
        return self.sequence * self.micro_batch

    @property
    def rank_flops(self) -> float:
        """FLOPs per second of the GPUs of one rank."""
        return self.tp * self.gpu_flops * self.utilisation

    def tensor_all_reduce_s(self, model: Model) -> float:
        """Return the seconds of one all-reduce of a rank's tokens over its GPUs, in a ring.

        A layer has four: after attention and after the experts, forward and backward (Megatron-LM,
        arXiv 1909.08053, section 3).
        """
        ring_share = 2 * (self.tp - 1) / self.tp
        return ring_share * self.rank_tokens * model.token_bytes / self.nvlink_bytes_s

    def attention_s(self, model: Model, direction: Direction = "forward") -> float:
        """Return the seconds of a layer on its tokens' own rank, before and beside the experts.

        These are attention, router, shared expert, and the all-reduce of tensor parallelism.
        """
        flops = self.rank_tokens * model.replicated_flops(self.sequence)
        return self._seconds(flops, direction) + self._all_reduces_s(model, direction)

    def expert_s(self, model: Model, tokens: float, direction: Direction = "forward") -> float:
        """Return the seconds of a rank's experts for their tokens, and of their all-reduce."""
        flops = tokens * model.expert_flops()
        return self._seconds(flops, direction) + self._all_reduces_s(model, direction)

    def dense_layer_s(self, model: Model, direction: Direction = "forward") -> float:
        """Return the seconds of a layer without experts, with its two all-reduces."""
        flops = self.rank_tokens * model.dense_layer_flops(self.sequence)
        return self._seconds(flops, direction) + 2 * self._all_reduces_s(model, direction)

    def head_s(self, model: Model, direction: Direction = "forward") -> float:
        """Return the seconds of the head, which is never recomputed."""
        passes = 1.0 if direction == "forward" else BACKWARD
        return passes * self.rank_tokens * model.head_flops() / self.rank_flops

    def _seconds(self, forward_flops: float, direction: Direction) -> float:
        passes = 1.0 if direction == "forward" else BACKWARD + self.recomputation
        return passes * forward_flops / self.rank_flops

    def _all_reduces_s(self, model: Model, direction: Direction) -> float:
        repeated = direction == "backward" and self.recomputation
        return (1 + repeated) * self.tensor_all_reduce_s(model)
