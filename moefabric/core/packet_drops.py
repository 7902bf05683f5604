"""Packet drops: whether a fabric can drop packets, and the room of the queues that do."""

from moefabric.core.topology import Fabric
from moefabric.core.units import QueueLimit


def drops_packets(fabric: Fabric) -> bool:
    """Return whether queues or links may drop packets, so that hosts send single ones."""
    return fabric.queue is not None or fabric.eps_link is not None


def queue_room(fabric: Fabric) -> str:
    """Return the room of the queues that drop packets, as users write it (`100 packets`)."""
    link = fabric.eps_link
    if link is None or link.behaviour.queue_bytes is None:
        return str(fabric.queue) if fabric.queue is not None else "any length"
    return str(QueueLimit(link.behaviour.queue_bytes, in_bytes=True))
