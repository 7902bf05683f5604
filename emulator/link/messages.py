"""Messages of a relay: its ports, which it receives, and its counters, which it sends; pickled."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from moefabric.core.link import LinkBehaviour
from moefabric.emulator.link.lateness import Lateness


@dataclass(frozen=True)
class RelayPort:
    """An interface of a relay, and the direction of a link that ends there.

    Attributes:
        interface: The interface, in the relay's namespace.
        behaviour: Behaviour of the link that leads to the interface.
        mtu: Largest IP packet in bytes.
        peer: Number of the port to which frames from this interface go. None: the port that has
            the destination's MAC address, as in a switch.
        macs: MAC addresses behind this interface.
    """

    interface: str
    behaviour: LinkBehaviour
    mtu: int = 1500
    peer: int | None = None
    macs: tuple[str, ...] = ()


@dataclass
class PortCounts:
    """Numbers of the frames of one direction, by their fate.

    Attributes:
        packets: Frames passed on.
        bytes: Bytes passed on, with Ethernet headers.
        full: By class, frames that found no room in the queue.
        early: By class, frames that were dropped early, at the threshold.
        lost: By class, frames lost on the way.
        marked: Frames that got the mark Congestion Experienced.
        peak_bytes: Most bytes that waited in the queue of a path.
    """

    packets: int = 0
    bytes: int = 0
    full: dict[int, int] = field(default_factory=dict)
    early: dict[int, int] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    marked: int = 0
    peak_bytes: int = 0

    @property
    def dropped(self) -> int:
        """Frames that were dropped, for any reason."""
        return sum(sum(classes.values()) for classes in (self.full, self.early, self.lost))


@dataclass(frozen=True)
class RelayCounters:
    """Counters of a relay since its start or the last `reset`.

    Attributes:
        ports: By interface, frames of the link that leads there.
        lateness: How much later than the links would have, the relay has passed frames on.
        overflows: Frames that the relay was too late to read, or that exceed the MTU.
        unsent: Frames that an interface has refused.
        unknown: Frames to MAC addresses behind no port.
    """

    ports: Mapping[str, PortCounts]
    lateness: Lateness
    overflows: int
    unsent: int
    unknown: int
