"""The model that trains: its sizes, how many bytes a token is, and how long its layers compute (a FLOPs model)."""

from dataclasses import dataclass
from typing import Final, Literal

_BYTES_BF16: Final = 2


@dataclass(frozen=True)
class Model:
    """A Mixture-of-Experts transformer. `ffn` is one expert's inner size; three matrices (SwiGLU); grouped-query attention."""

    name: str
    layers: int
    hidden: int
    ffn: int
    experts: int
    top_k: int
    kv_hidden: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's activations on the wire (bfloat16)."""
        return self.hidden * _BYTES_BF16

    def attention_flops(self, sequence: int) -> float:
        """Forward FLOPs a token of one attention block: four projections, and scores over half the (causal) sequence."""
        projections = 2 * (2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_hidden)
        return projections + 2 * 2 * self.hidden * sequence / 2

    def expert_flops(self) -> float:
        """Forward FLOPs a token of one expert: three matrices of hidden x ffn."""
        return 2 * 3 * self.hidden * self.ffn


Known = Literal["mixtral-8x7b", "mixtral-8x22b", "llama-moe", "qwen-moe", "deepseek-r1"]
"""The names of `MODELS`."""

MODELS: Final = {
    model.name: model
    for model in (
        Model("mixtral-8x7b", layers=32, hidden=4096, ffn=14336, experts=8, top_k=2, kv_hidden=1024),
        Model("mixtral-8x22b", layers=56, hidden=6144, ffn=16384, experts=8, top_k=2, kv_hidden=1024),
        Model("llama-moe", layers=32, hidden=4096, ffn=688, experts=16, top_k=4, kv_hidden=4096),
        Model("qwen-moe", layers=24, hidden=2048, ffn=1408, experts=64, top_k=4, kv_hidden=2048),
        Model("deepseek-r1", layers=58, hidden=7168, ffn=2048, experts=256, top_k=8, kv_hidden=512),
    )
}
"""Sizes from the models' published configurations; experts as the paper counts them (its table 1, section 7.1)."""


@dataclass(frozen=True)
class Training:
    """How it trains: `ep` expert-parallel ranks of `tp` GPUs, micro-batch and sequence in tokens, GPUs of `gpu_flops` at `utilisation`."""

    ep: int
    tp: int
    sequence: int
    micro_batch: int
    gpu_flops: float
    utilisation: float

    @property
    def rank_tokens(self) -> int:
        """Tokens that one rank sends through a layer in one micro-batch."""
        return self.sequence * self.micro_batch

    @property
    def rank_flops(self) -> float:
        """What the GPUs of one rank really compute in a second."""
        return self.tp * self.gpu_flops * self.utilisation

    def attention_s(self, model: Model) -> float:
        """Forward seconds of one attention block."""
        return self.rank_tokens * model.attention_flops(self.sequence) / self.rank_flops

    def expert_s(self, model: Model, tokens: float) -> float:
        """Forward seconds of an expert that was sent `tokens` tokens, on the GPUs of its rank."""
        return tokens * model.expert_flops() / self.rank_flops


BACKWARD: Final = 2.0
"""A backward pass computes twice what the forward does: gradients of inputs and of weights."""
