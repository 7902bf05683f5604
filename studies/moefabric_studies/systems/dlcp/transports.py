"""The transports that the study compares, and the switches that each of them asks for."""

from dataclasses import dataclass
from typing import Final

from moefabric.api.links import LinkBehaviour, PathChoice, Scheduling


@dataclass(frozen=True)
class TransportChoice:
    """A transport of tensors, and the switch's treatment of their packets.

    Attributes:
        name: As pages call it.
        congestion: TCP's congestion control; empty for the bounded-loss transport.
        loss_percent: Share of a tensor that the bounded-loss transport may lose.
        prioritized: Whether front layers are served first: by hosts with TCP, else by switches too.
        ecn: Whether switches mark packets, and drop unimportant ones early.
        sprayed: Whether packets take turns on equal paths; if not, a flow has one path.
        rto_min_ms: TCP's least retransmission timeout; 0 for Linux's, 200 ms.
    """

    name: str
    congestion: str = ""
    loss_percent: int = 0
    prioritized: bool = False
    ecn: bool = False
    sprayed: bool = False
    rto_min_ms: int = 0

    @property
    def is_bounded_loss(self) -> bool:
        """True if tensors travel by the bounded-loss transport."""
        return not self.congestion

    def port(
        self, rate_bps: float, queue_bytes: int, delay_ns: int, threshold_bytes: int, paths: int = 1
    ) -> LinkBehaviour:
        """Return the behaviour of a switch's port.

        Args:
            rate_bps: Rate of the link in bits per second, of all paths together.
            queue_bytes: Room of the port's queue.
            delay_ns: Propagation delay.
            threshold_bytes: Backlog from which packets are marked or dropped early.
            paths: Number of equal paths.
        """
        return LinkBehaviour(
            rate_bps,
            delay_ns,
            queue_bytes=queue_bytes,
            scheduling=Scheduling.PRIORITY
            if self.prioritized and self.is_bounded_loss
            else Scheduling.FIFO,
            ecn_bytes=threshold_bytes if self.ecn else None,
            early_drop_bytes=threshold_bytes if self.ecn and self.is_bounded_loss else None,
            paths=paths,
            path_choice=PathChoice.PACKET if self.sprayed else PathChoice.FLOW,
        )


CUBIC: Final = TransportChoice("cubic", "cubic")
BBR: Final = TransportChoice("bbr", "bbr")
DCTCP: Final = TransportChoice("dctcp", "dctcp", ecn=True)
PRIORITY_TCP: Final = TransportChoice("cubic, layer priority", "cubic", prioritized=True)
SHORT_TIMEOUT: Final = TransportChoice("cubic, 5 ms timeout", "cubic", rto_min_ms=5)
"""The remedy for incast that needs no new transport (Vasudevan et al., SIGCOMM 2009)."""


def bounded_loss(loss_percent: int, *, ideas: int = 3) -> TransportChoice:
    """Return the bounded-loss transport with the first ideas of the paper.

    Args:
        loss_percent: Share of a tensor that may be lost.
        ideas: 1 for bounded loss alone, 2 with priorities and selective drops, 3 with spraying.
    """
    name = {1: "bounded loss", 2: "bounded loss, priority", 3: "dlcp"}[ideas]
    return TransportChoice(
        name if loss_percent else f"{name}, p = 0",
        loss_percent=loss_percent,
        prioritized=ideas > 1,
        ecn=ideas > 1,
        sprayed=ideas > 2,
    )
