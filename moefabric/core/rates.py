"""Rates of circuits, of uplinks, and of all NICs of a fabric together, in the model."""

from moefabric.core.topology import Fabric


def circuit_rate_bps(fabric: Fabric, a: str, b: str) -> float:
    """Return the rate of a circuit between two servers: that of its slower NIC."""
    return min(fabric.rate_bps(a), fabric.rate_bps(b))


def uplink_rate_bps(fabric: Fabric) -> float:
    """Return the rate of one link between a leaf and a spine.

    If the rates of NICs differ, leaves have uplinks for the fastest ones.
    """
    return fabric.eps_wiring.uplink_rate_bps(max(fabric.rates_bps))


def capacity_bps(fabric: Fabric) -> float:
    """Return the rate of all NICs together."""
    return (fabric.optical + fabric.electrical) * sum(fabric.rates_bps)
