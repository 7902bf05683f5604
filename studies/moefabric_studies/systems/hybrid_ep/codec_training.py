"""A small MoE language model, trained with experts that went through the codec.

In each step, every token is computed by decoded experts, as if all experts came from other workers.
Gradients go to the experts themselves, which their owners keep whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from moefabric.api.plugins import missing_package
from moefabric_studies.codecs.expert_codec import Weights, decode, encode, shared_expert
from moefabric_studies.systems.measured import times_s

if TYPE_CHECKING:
    from torch import Generator, Tensor

CodecUse = Literal["none", "shared", "alone"]
"""No codec; residuals of the shared expert; the experts' own numbers, without a shared expert."""
CODEC_USES: Final[tuple[CodecUse, ...]] = get_args(CodecUse)

_EXPERTS: Final = 8
_HIDDEN: Final = 64
_INNER: Final = 128
_CONTEXT: Final = 8
"""Letters from which the next one is predicted."""
_EMBEDDING: Final = 16
_BATCH: Final = 256
_HELD_OUT: Final = 4096
"""Letters at the end of the text that aren't trained on."""
_RATE: Final = 3e-3


def trained_loss(text: Path, use: CodecUse, ratio: float, steps: int, seed: int) -> float:
    """Train a model on a text, and return its loss on the end of the text, in nats per letter.

    Args:
        use: What the codec does to experts.
        ratio: Ratio of the codec.
        steps: Number of steps of Adam.
        seed: Seed of weights and batches.

    Raises:
        UnsupportedError: If PyTorch is missing.
    """
    try:
        import torch
        from torch.nn.functional import cross_entropy
    except ImportError as error:
        raise missing_package("the codec's loss", "torch") from error
    torch.set_num_threads(1)  # matrices are too small for more
    letters = np.frombuffer(text.read_bytes(), np.uint8)
    symbols, codes = np.unique(letters, return_inverse=True)
    stream = torch.as_tensor(codes)
    generator = torch.Generator().manual_seed(seed)
    model = _model(len(symbols), generator)
    optimizer = torch.optim.Adam(model, lr=_RATE)
    trained = len(stream) - _HELD_OUT
    for _ in range(steps):
        starts = torch.randint(0, trained - _CONTEXT, (_BATCH,), generator=generator)
        loss = cross_entropy(*_predicted(model, stream, starts, use, ratio))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # PyTorch's has no types
        optimizer.step()
    with torch.no_grad():
        starts = torch.arange(trained, len(stream) - _CONTEXT)
        return float(cross_entropy(*_predicted(model, stream, starts, use, ratio)))


def _model(symbols: int, generator: "Generator") -> "list[Tensor]":
    """Return the weights: embedding, input, gate, both layers of the experts, output."""
    import torch

    def weights(*shape: int) -> "Tensor":
        values: Tensor = torch.randn(*shape, generator=generator) / shape[-2] ** 0.5
        values.requires_grad = True
        return values

    return [
        weights(symbols, _EMBEDDING),
        weights(_CONTEXT * _EMBEDDING, _HIDDEN),
        weights(_HIDDEN, _EXPERTS),
        weights(_EXPERTS, _HIDDEN, _INNER),
        weights(_EXPERTS, _INNER, _HIDDEN),
        weights(_HIDDEN, symbols),
    ]


def _predicted(
    model: "Sequence[Tensor]", stream: "Tensor", starts: "Tensor", use: CodecUse, ratio: float
) -> "tuple[Tensor, Tensor]":
    """Return the scores of the next letters, and the letters; one expert for each context."""
    import torch

    embedding, first, gate, up, down, last = model
    places = starts[:, None] + torch.arange(_CONTEXT)
    hidden = torch.tanh(embedding[stream[places]].flatten(1) @ first)
    shares = torch.softmax(hidden @ gate, dim=1)
    share, chosen = shares.max(dim=1)
    up, down = (_through_codec(layer, use, ratio) for layer in (up, down))
    outputs = torch.einsum("bi,eij->bej", hidden, up).relu()
    outputs = torch.einsum("bej,eji->bei", outputs, down)
    results = outputs[torch.arange(len(starts)), chosen]
    return (hidden + share[:, None] * results) @ last, stream[starts + _CONTEXT]


def _through_codec(experts: "Tensor", use: CodecUse, ratio: float) -> "Tensor":
    """Return experts as other workers decode them; gradients pass unchanged."""
    import torch

    if use == "none":
        return experts
    weights: list[Weights] = [expert.detach().numpy().ravel() for expert in experts]
    mean = shared_expert(weights)
    shared = mean if use == "shared" else np.zeros_like(mean)
    decoded = np.stack([decode(encode(expert, shared, ratio), shared) for expert in weights])
    change = torch.from_numpy(decoded).reshape(experts.shape) - experts.detach()
    return experts + change


_SAMPLES = 5
_CODED_EXPERTS = 4


@dataclass(frozen=True)
class CodecCost:
    """The codec on one expert.

    Attributes:
        expert_bytes: Bytes of the expert.
        code_bytes: Bytes of its code, indices included.
        encode_s: Median seconds to encode it.
        decode_s: Median seconds to decode it.
    """

    expert_bytes: int
    code_bytes: int
    encode_s: float
    decode_s: float

    @property
    def ratio(self) -> float:
        """Bytes of the expert for each byte of its code."""
        return self.expert_bytes / self.code_bytes


def codec_cost(expert_bytes: int, ratio: float) -> CodecCost:
    """Encode and decode an expert of random float32 weights, and return the time of both.

    Args:
        expert_bytes: Bytes of the expert.
        ratio: Bytes of the expert for each byte of the code.
    """
    generator = np.random.default_rng(0)
    weights = [
        generator.standard_normal(expert_bytes // 4, dtype=np.float32)
        for _ in range(_CODED_EXPERTS)
    ]
    shared = shared_expert(weights)
    code = encode(weights[0], shared, ratio)
    return CodecCost(
        weights[0].nbytes,
        len(code),
        median(times_s(lambda: encode(weights[0], shared, ratio), _SAMPLES)),
        median(times_s(lambda: decode(code, shared), _SAMPLES)),
    )
