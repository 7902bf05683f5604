"""Links of the EPS with a behaviour of their own, as users write it."""

from typing import Annotated

from pydantic import Field

from moefabric.config.section import ByteSize, DurationNs, Section, quantity_field
from moefabric.core.link import EpsLink, LinkBehaviour, LinkPlace, Scheduling


class EpsLinkSpec(Section):
    """Behaviour of links of the EPS, which a relay in user space gives them.

    A fabric has one relay, which passes some 50,000 packets a second on. A run whose relay is late
    is degraded.
    """

    place: Annotated[LinkPlace, Field(strict=False)] = LinkPlace.NICS
    """`nics`: links between electrical NICs and leaves; `uplinks`: between leaves and spines."""
    delay: DurationNs = quantity_field("0s")
    """Propagation delay of a link, one way."""
    jitter: DurationNs = quantity_field("0s")
    """Random time up to this one, in addition to the delay."""
    queue: ByteSize | None = Field(default=None, ge=1)
    """Room of the queue at each end in bytes, with headers. Packets and queues aren't scaled.
    Default: no limit."""
    scheduling: Annotated[Scheduling, Field(strict=False)] = Scheduling.FIFO
    """`fifo`, or `fair`: flows in turn."""
    ecn: ByteSize | None = Field(default=None, ge=1)
    """Waiting bytes from which packets of ECN-capable flows are marked. Default: never."""
    early_drop: ByteSize | None = Field(default=None, ge=1)
    """Waiting bytes from which other packets are dropped. Default: never."""
    loss: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability that a packet is lost on a link."""

    def build(self) -> EpsLink:
        """Return the behaviour that this section describes."""
        behaviour = LinkBehaviour(
            delay_ns=self.delay,
            jitter_ns=self.jitter,
            queue_bytes=self.queue,
            scheduling=self.scheduling,
            ecn_bytes=self.ecn,
            early_drop_bytes=self.early_drop,
            loss=self.loss,
        )
        return EpsLink(behaviour, self.place)
