"""Payload transforms: the form of tokens on the wire, and the time to encode and decode them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal, Protocol

_MEMORY_BYTES_S: Final = 2.0e12
"""Bytes a second of an A100's memory (80 GB; data sheet: 2,039 GB/s)."""
_FP8_TOUCHED: Final = 1.5
"""Bytes read and written for each byte of bfloat16, when it becomes FP8 or comes from it."""


WireType = Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "mxfp4"]
"""Form of numbers on their way between ranks."""


@dataclass(frozen=True)
class WireFormat:
    """Bytes of numbers on the wire.

    Attributes:
        bits: Bits of a number.
        block: Numbers that share a scale; 0 without scales.
        scale_bytes: Bytes of a scale.
    """

    bits: int
    block: int = 0
    scale_bytes: int = 0

    def bytes(self, numbers: int) -> int:
        """Return the bytes of numbers with their scales."""
        scales = ceil(numbers / self.block) if self.block else 0
        return ceil(numbers * self.bits / 8) + scales * self.scale_bytes


WIRE_FORMATS: Final[Mapping[WireType, WireFormat]] = {
    "fp32": WireFormat(32),
    "bf16": WireFormat(16),
    "fp16": WireFormat(16),
    "fp8": WireFormat(8, block=128, scale_bytes=4),
    "mxfp8": WireFormat(8, block=32, scale_bytes=1),
    "mxfp4": WireFormat(4, block=32, scale_bytes=1),
}
"""`fp8` has a float32 scale for each 128 numbers (DeepSeek-V3, arXiv 2412.19437, section 3.3.2, as
DeepEP sends it). Microscaling formats have a scale of 8 bits for each 32 (OCP MX 1.0, table 1)."""


class PayloadTransform(Protocol):
    """The form that tokens have in an all-to-all.

    A transform is a model: agents send the bytes that it gives, and the time of coding adds to the
    iteration.

    Example:
        class Halved:
            name = "halved"
            encode_s_per_byte = decode_s_per_byte = 0.0

            def token_bytes(self, hidden: int, plain_bytes: float) -> float:
                return plain_bytes / 2

            def token_flops(self, hidden: int) -> float:
                return 0.0
    """

    @property
    def name(self) -> str:
        """The name that specifications use."""

    def token_bytes(self, hidden: int, plain_bytes: float) -> float:
        """Return the bytes of one token on the wire.

        Args:
            hidden: Numbers of a token's activations.
            plain_bytes: Bytes of a token in the data type that the model has on the wire.
        """

    @property
    def encode_s_per_byte(self) -> float:
        """Seconds in which one GPU encodes a plain byte."""

    @property
    def decode_s_per_byte(self) -> float:
        """Seconds in which one GPU decodes the code of one plain byte."""

    def token_flops(self, hidden: int) -> float:
        """Return the forward FLOPs of a token on its own rank, spent once for all its experts.

        The backward pass computes gradients of inputs and of weights, as for other matrices.

        Args:
            hidden: Numbers of a token's activations.
        """


@dataclass(frozen=True)
class Plain:
    """Tokens as the model has them: no coding."""

    name: str = "none"
    encode_s_per_byte: float = 0.0
    decode_s_per_byte: float = 0.0

    def token_bytes(self, hidden: int, plain_bytes: float) -> float:  # noqa: ARG002
        """Return the plain bytes."""
        return plain_bytes

    def token_flops(self, hidden: int) -> float:  # noqa: ARG002
        """Return 0: the model computes nothing more."""
        return 0.0


@dataclass(frozen=True)
class Fp8(Plain):
    """FP8 with one scale of 32 bits for 128 numbers (DeepSeek-V3, section 3.3.2).

    Coding is bound by memory: a number of two bytes is read and one of one byte written, or the
    other way round.
    """

    name: str = "fp8"
    encode_s_per_byte: float = _FP8_TOUCHED / _MEMORY_BYTES_S
    decode_s_per_byte: float = _FP8_TOUCHED / _MEMORY_BYTES_S

    def token_bytes(self, hidden: int, plain_bytes: float) -> float:
        """Return one byte for each number, and the scales; never more than plain bytes."""
        return min(plain_bytes, WIRE_FORMATS["fp8"].bytes(hidden))


_INNER: Final[Mapping[str, Plain | Fp8]] = {"none": Plain(), "fp8": Fp8()}


@dataclass(frozen=True)
class BigMac:
    """Tokens of r times the width (BigMac, arXiv 2502.16927, section 4).

    A token's own rank projects it down before the first all-to-all and up after the second one.
    Experts widen and narrow what they receive instead of the reverse, with as many weights.

    Attributes:
        r: Width on the wire relative to the hidden size.
        inner: Form of the narrow tokens: `none` or `fp8`.
    """

    r: float = 0.25
    inner: str = "none"

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If one of them is wrong.
        """
        if not 0 < self.r <= 1:
            raise ValueError(f"r is {self.r:g}: the width is a part of the hidden size, 0 < r <= 1")
        if self.inner not in _INNER:
            raise ValueError(f"inner is {self.inner!r}, not one of {', '.join(_INNER)}")

    @property
    def name(self) -> str:
        """The name with its arguments, as specifications write it."""
        return f"bigmac(r={self.r:g}, inner={self.inner})"

    @property
    def encode_s_per_byte(self) -> float:
        """Seconds in which one GPU encodes one plain byte of full width."""
        return self.r * _INNER[self.inner].encode_s_per_byte

    @property
    def decode_s_per_byte(self) -> float:
        """Seconds in which one GPU decodes the code of one plain byte of full width."""
        return self.r * _INNER[self.inner].decode_s_per_byte

    def token_bytes(self, hidden: int, plain_bytes: float) -> float:
        """Return the bytes of a narrow token."""
        return _INNER[self.inner].token_bytes(round(self.r * hidden), self.r * plain_bytes)

    def token_flops(self, hidden: int) -> float:
        """Return the FLOPs of one matrix of hidden x r hidden: down or up."""
        return 2 * self.r * hidden**2


@dataclass(frozen=True)
class Payloads:
    """The transforms of tokens on their way to experts and back.

    In the backward pass, gradients of the outputs go to experts as tokens do in the forward pass,
    and gradients of the inputs come back.
    """

    dispatch: PayloadTransform = field(default_factory=Plain)
    combine: PayloadTransform = field(default_factory=Plain)

    def source_flops(self, hidden: int) -> float:
        """Return the forward FLOPs of a token on its own rank, beyond the model's."""
        return self.dispatch.token_flops(hidden) + self.combine.token_flops(hidden)

    def source_weights(self, hidden: int) -> float:
        """Return the weights of the matrices that a token meets on its own rank: FLOPs / 2."""
        return self.source_flops(hidden) / 2

    @property
    def source_s_per_byte(self) -> tuple[float, float]:
        """Return a GPU's seconds at a token's own rank for a plain byte sent, and returned."""
        return self.dispatch.encode_s_per_byte, self.combine.decode_s_per_byte

    @property
    def expert_s_per_byte(self) -> tuple[float, float]:
        """Return a GPU's seconds at an expert's rank for a plain byte received, and returned."""
        return self.dispatch.decode_s_per_byte, self.combine.encode_s_per_byte


PLAIN: Final = Payloads()
"""Tokens as the model has them, both ways."""
