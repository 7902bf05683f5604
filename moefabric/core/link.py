"""Behaviour of one direction of a link: rate, queue, scheduling, marks, drops and delay."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from moefabric.core.units import Scale


class Scheduling(StrEnum):
    """Which waiting packet a link sends next."""

    FIFO = "fifo"
    """In the order of arrival."""
    PRIORITY = "priority"
    """Eight strict priorities by class selector, the upper three bits of the DSCP (RFC 2474). A
    packet that finds no room takes that of a packet of a lower class."""
    FAIR = "fair"
    """Flows in turn, by bytes (deficit round robin). The longest queue loses packets."""


class PathChoice(StrEnum):
    """How packets are spread over the equal paths of a link."""

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

    Attributes:
        rate_bps: Rate in bits per second; None for no limit. Paths share it equally.
        delay_ns: Propagation delay.
        jitter_ns: A random time up to this one is added to the delay. It doesn't reorder packets.
        queue_bytes: Room for waiting frames; None for no limit. Paths share it equally.
        scheduling: Which waiting packet is sent next.
        ecn_bytes: A packet of an ECN-capable flow gets the mark Congestion Experienced (RFC 3168)
            if at least so many bytes wait in the queue that it joins; None for never.
        early_drop_bytes: Any other packet is dropped if at least so many bytes wait in the queue
            that it joins; None for never.
        loss: Probability that a packet is lost on the way.
        paths: Number of equal paths.
        path_choice: How packets are spread over the paths.
    """

    rate_bps: float | None = None
    delay_ns: int = 0
    jitter_ns: int = 0
    queue_bytes: int | None = None
    scheduling: Scheduling = Scheduling.FIFO
    ecn_bytes: int | None = None
    early_drop_bytes: int | None = None
    loss: float = 0.0
    paths: int = 1
    path_choice: PathChoice = PathChoice.PACKET

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
    """Those between electrical NICs and leaves."""
    UPLINKS = "uplinks"
    """Those between leaves and spines."""


@dataclass(frozen=True)
class EpsLink:
    """Behaviour of links of the EPS, in model time; the links' rates are those of the fabric."""

    behaviour: LinkBehaviour
    place: LinkPlace = LinkPlace.NICS

    def emulated(self, rate_bps: float, scale: Scale) -> LinkBehaviour:
        """Return the behaviour of a link of an emulated rate; times stretch with dilation."""
        model = self.behaviour
        delay_ns, jitter_ns = scale.wall_ns(model.delay_ns), scale.wall_ns(model.jitter_ns)
        return replace(model, rate_bps=rate_bps, delay_ns=delay_ns, jitter_ns=jitter_ns)
