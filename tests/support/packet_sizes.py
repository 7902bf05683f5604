from moefabric.core.port_counts import FRAME_HEADER_BYTES, IP_TCP_BYTES


def packets_bytes(sent: int, mtu: int) -> int:
    """Return the bytes of the packets that carry `sent` bytes of a connection.

    These are the bytes that a queueing discipline counts: each packet of a large frame has its own
    headers, and all packets but the last are full.
    """
    return sent + -(-sent // (mtu - IP_TCP_BYTES)) * FRAME_HEADER_BYTES
