"""Behaviour of one direction of a link: rate, queue, scheduling, marks, drops and delay."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from annotated_types import Interval

from moefabric.core.units import Scale


class Scheduling(StrEnum):
    """The order in which a link sends waiting packets."""

    FIFO = "fifo"
    """In the order of arrival."""
    PRIORITY = "priority"
    """Eight strict priorities by class selector, the upper three bits of the DSCP (RFC 2474). A
    packet that finds no room takes that of a packet of a lower class."""
    FAIR = "fair"
    """Flows in turn, by bytes (deficit round robin). The longest queue loses packets."""


class PathChoice(StrEnum):
    """The way in which packets are spread over the equal paths of a link."""

    PACKET = "packet"
    """Each packet takes the next path: packet spraying."""
    FLOW = "flow"
    """All packets of a flow take one path, as with equal-cost multipath routing."""


@dataclass(frozen=True)
class LinkBehaviour:
    """Behaviour of one direction of a link.

    Without a rate no frame waits, so that the room and the thresholds have no effect.
    Frames count with their Ethernet header, as at the kernel's counters. The frame that is being
    sent doesn't count as waiting.
    """

    rate_bps: float | None = None
    """Rate in bits per second; None for no limit. Paths share it equally."""
    delay_ns: int = 0
    """Propagation delay of a link, one way."""
    jitter_ns: int = 0
    """Random time up to this one, in addition to the delay.

    It doesn't reorder packets.
    """
    queue_bytes: int | None = None
    """Room of the queue at each end in bytes, with headers. Packets and queues aren't scaled.
    Default: no limit.

    Paths share it equally.
    """
    scheduling: Scheduling = Scheduling.FIFO
    """`fifo`, or `fair`: flows in turn."""
    ecn_bytes: int | None = None
    """Waiting bytes from which packets of ECN-capable flows are marked. Default: never.

    The mark is Congestion Experienced (RFC 3168). The bytes are those of the queue that a packet
    joins.
    """
    early_drop_bytes: int | None = None
    """Waiting bytes from which other packets are dropped. Default: never."""
    loss: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Probability that a packet is lost on a link."""
    paths: int = 1
    """Number of equal paths."""
    path_choice: PathChoice = PathChoice.PACKET
    """How packets are spread over the paths."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: Names the values that no link can have.
        """
        if faults := list(self._faults()):
            raise ValueError("; ".join(faults))

    def _faults(self) -> Iterator[str]:
        if self.rate_bps is not None and not self.rate_bps > 0:
            yield f"a rate of {self.rate_bps:g} b/s sends nothing"
        if min(self.delay_ns, self.jitter_ns) < 0:
            yield "a delay is negative"
        if not 0 <= self.loss < 1:
            yield f"a loss of {self.loss:g} is no probability below 1"
        if self.paths < 1:
            yield "a link has a path at least"


class LinkPlace(StrEnum):
    """Links of the EPS that have a behaviour of their own."""

    NICS = "nics"
    """Links between electrical NICs and leaves."""
    UPLINKS = "uplinks"
    """Links between leaves and spines."""


@dataclass(frozen=True)
class EpsLink:
    """Behaviour of links of the EPS, in model time; the fabric gives the links' rates."""

    behaviour: LinkBehaviour
    place: LinkPlace = LinkPlace.NICS

    def emulated(self, rate_bps: float, scale: Scale) -> LinkBehaviour:
        """Return the behaviour of a link of an emulated rate; times stretch with dilation."""
        model = self.behaviour
        delay_ns, jitter_ns = scale.wall_ns(model.delay_ns), scale.wall_ns(model.jitter_ns)
        return replace(model, rate_bps=rate_bps, delay_ns=delay_ns, jitter_ns=jitter_ns)
