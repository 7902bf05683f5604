"""Latency of a route and start of a TCP connection, as closed forms.

Both are added to the seconds that the sharing of links takes. They matter where a flow lasts for a
few round trips only. Nothing here is fitted to a measurement.
"""

from math import ceil, log2

INITIAL_WINDOW = 10
"""Segments that a TCP connection may send before the first acknowledgement (RFC 6928)."""


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


def slow_start_s(
    size_bytes: float, rate_bps: float, round_trip_s: float, segment_bytes: float
) -> float:
    """Return the seconds that slow start costs a new TCP connection.

    The window is `INITIAL_WINDOW` segments in the first round trip, and doubles in each until it
    covers the product of rate and round trip or until all bytes are sent. The connection waits for
    acknowledgements during the rest of each of these round trips.

    A connection that has carried as much before keeps its window (Linux with
    `tcp_slow_start_after_idle` 0) and starts at once.

    Args:
        size_bytes: Payload bytes to send.
        rate_bps: The connection's share of the links, payload bits per second.
        round_trip_s: Round-trip time in seconds.
        segment_bytes: Payload bytes of a segment.
    """
    window_bytes = INITIAL_WINDOW * segment_bytes
    full_bytes = rate_bps * round_trip_s / 8
    rounds = max(0, ceil(log2(max(1.0, full_bytes / window_bytes))))
    # All windows up to number n hold 2^n - 1 first windows. The last one needs no acknowledgement.
    needed = max(0, ceil(log2(size_bytes / window_bytes + 1)) - 1) if size_bytes > 0 else 0
    rounds = min(rounds, needed)
    return rounds * round_trip_s - 8 * window_bytes * ((1 << rounds) - 1) / rate_bps
