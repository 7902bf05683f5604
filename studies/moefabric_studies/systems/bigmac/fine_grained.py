"""Fine-grained MoE as the BigMac paper counts it: FLOPs, parameters and bytes of an iteration."""

from dataclasses import dataclass

from moefabric.api.workloads import BACKWARD, BYTES_BF16, Payloads, PayloadTransform


@dataclass(frozen=True)
class FineGrained:
    """A transformer whose experts have two matrices of r times the width of a dense block's.

    Formulae are those of arXiv 2502.16927, section 4.3; table 4 has the default sizes.

    Attributes:
        hidden: Hidden size.
        layers: Layers.
        sequence: Tokens of a sequence, of which each attends to all.
        tokens: Tokens of an iteration.
        experts: Experts of a layer.
        top_k: Experts of a token.
        ep: Expert-parallel ranks.
        r: Inner size of an expert relative to the hidden size.
        vocabulary: Tokens that the head tells apart: GPT-2's 50,257, padded to a multiple of 128.
    """

    hidden: int = 2048
    layers: int = 24
    sequence: int = 2048
    tokens: int = 2**19
    experts: int = 64
    top_k: int = 8
    ep: int = 32
    r: float = 0.25
    vocabulary: int = 50304

    def flops(self, transform: PayloadTransform) -> float:
        """Return the FLOPs of an iteration, forward and backward."""
        width = self.hidden
        matrices = 2 + self.sequence / width + self.r * self.top_k
        head = self.vocabulary / (2 * self.layers * width)
        added = Payloads(transform, transform).source_flops(width)
        token_flops = 4 * width**2 * (matrices + head) + added
        return (1 + BACKWARD) * self.tokens * self.layers * token_flops

    def parameters(self, transform: PayloadTransform) -> float:
        """Return the weights: attention, experts, what the transform adds, and embeddings."""
        experts = 2 * self.r * self.hidden**2 * self.experts
        added = Payloads(transform, transform).source_weights(self.hidden)
        return self.layers * (4 * self.hidden**2 + experts + added) + self.vocabulary * self.hidden

    def all_to_all_bytes(self, transform: PayloadTransform) -> float:
        """Return the bytes that ranks send each other in an iteration: four all-to-alls a layer."""
        token_bytes = transform.token_bytes(self.hidden, BYTES_BF16 * self.hidden)
        copies = self.tokens * self.top_k * (self.ep - 1) / self.ep
        return 4 * self.layers * copies * token_bytes
