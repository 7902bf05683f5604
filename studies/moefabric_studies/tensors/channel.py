"""Channels between two servers, by which tensors travel in both directions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from moefabric_studies.tensors.receiver import Received

CLASSES: Final = 8
"""Classes of strict priority: DSCP CS7 is served first, CS0 last (RFC 2474, section 4.2.2)."""
OnTensor = Callable[[Received], object]


@dataclass(frozen=True)
class Tensor:
    """A tensor to send.

    Attributes:
        number: Its number, never used before in its direction of a channel.
        values: Its bytes: whole float32 values.
        loss_percent: Share of it that may be lost, if the channel can lose any.
        priority: Its class, 0 to 6; 0 is served first.
        order: Its chunks in the order in which they are sent; ascending by default.
        important: Chunks that switches should mark rather than drop early.
    """

    number: int
    values: bytes
    loss_percent: int = 0
    priority: int = 0
    order: Sequence[int] | None = None
    important: frozenset[int] = frozenset()


class TensorChannel(Protocol):
    """End of a channel."""

    def send(self, tensor: Tensor) -> None:
        """Send a tensor."""

    def close(self) -> None:
        """Close the channel's sockets."""


def service_byte(priority: int, *, ecn_capable: bool) -> int:
    """Return the IPv4 type-of-service byte of a class: DSCP and ECN field (RFC 3168).

    Args:
        priority: -1 for signals, 0 to 6 for tensors.
        ecn_capable: Whether switches may mark the packet instead of dropping it.
    """
    return (CLASSES - 2 - priority) << 5 | (0b10 if ecn_capable else 0)
