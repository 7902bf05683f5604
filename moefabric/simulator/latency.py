"""Latency of a route, as a closed form.

It is added to the seconds that the sharing of links takes. It matters where a flow lasts for a few
round trips only. Nothing here is fitted to a measurement.
"""


def route_latency_s(
    hops: int, propagation_s: float, frame_bytes: float = 0.0, rate_bps: float = 1.0
) -> float:
    """Return the seconds from when the first link has carried a byte until that byte arrives.

    The byte propagates along each link. Each node between two links stores its frame before the
    frame leaves by the next link.

    Args:
        hops: Number of links.
        propagation_s: Propagation delay of a link in seconds.
        frame_bytes: Size of a frame on the wire; 0 for cut-through.
        rate_bps: Rate of a link in bits per second.
    """
    return hops * propagation_s + (hops - 1) * 8 * frame_bytes / rate_bps
