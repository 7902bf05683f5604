"""Payload transforms: the form of tokens on the wire, and the time to encode and decode them."""

from dataclasses import dataclass, field
from typing import Final, Protocol

_FP8_BLOCK: Final = 128
_FP8_SCALE_BYTES: Final = 4
_MEMORY_BYTES_S: Final = 2.0e12
"""Bytes a second of an A100's memory (80 GB; data sheet: 2,039 GB/s)."""
_FP8_TOUCHED: Final = 1.5
"""Bytes read and written for each byte of bfloat16, when it becomes FP8 or comes from it."""


class PayloadTransform(Protocol):
    """The form that tokens have in an all-to-all.

    A transform is a model: agents send as many bytes as it says, and the iteration takes as much
    longer as coding takes.
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
        """Seconds in which one GPU decodes what was a plain byte."""


@dataclass(frozen=True)
class Plain:
    """Tokens as the model has them: no coding."""

    name: str = "none"
    encode_s_per_byte: float = 0.0
    decode_s_per_byte: float = 0.0

    def token_bytes(self, hidden: int, plain_bytes: float) -> float:  # noqa: ARG002
        """Return the plain bytes."""
        return plain_bytes


@dataclass(frozen=True)
class Fp8:
    """FP8 with one scale of 32 bits for 128 numbers (DeepSeek-V3, section 3.3.2).

    Coding is bound by memory: a number of two bytes is read and one of one byte written, or the
    other way round.
    """

    name: str = "fp8"
    encode_s_per_byte: float = _FP8_TOUCHED / _MEMORY_BYTES_S
    decode_s_per_byte: float = _FP8_TOUCHED / _MEMORY_BYTES_S

    def token_bytes(self, hidden: int, plain_bytes: float) -> float:
        """Return one byte for each number, and the scales; never more than plain bytes."""
        scales = -(-hidden // _FP8_BLOCK) * _FP8_SCALE_BYTES
        return min(plain_bytes, hidden + scales)


@dataclass(frozen=True)
class Payloads:
    """The transforms of the tokens that go to experts, and of what comes back.

    In the backward pass, gradients of the outputs go to experts as tokens do in the forward pass,
    and gradients of the inputs come back.
    """

    dispatch: PayloadTransform = field(default_factory=Plain)
    combine: PayloadTransform = field(default_factory=Plain)

    @property
    def source_s_per_byte(self) -> tuple[float, float]:
        """Return a GPU's seconds at a token's own rank for a plain byte sent, and returned."""
        return self.dispatch.encode_s_per_byte, self.combine.decode_s_per_byte

    @property
    def expert_s_per_byte(self) -> tuple[float, float]:
        """Return a GPU's seconds at an expert's rank for a plain byte received, and returned."""
        return self.dispatch.decode_s_per_byte, self.combine.encode_s_per_byte
