"""What Linux's TCP is asked for: a mark, a pace, a count of retransmissions."""

from __future__ import annotations

import socket
import struct

SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; Python doesn't name it
TOTAL_RETRANS = 100  # offset of tcpi_total_retrans in struct tcp_info, linux/tcp.h
UNPACED = struct.pack("=I", 0xFFFFFFFF)


def mark(sock: socket.socket, dscp: int) -> None:
    """Let packets of this socket carry that DSCP: it says by which NIC they leave."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)


def pacing(rate_bps: float | None) -> bytes:
    """SO_MAX_PACING_RATE of a rate: bytes per second, in four bytes or, beyond 34 Gb/s, eight (Linux 4.20)."""
    if rate_bps is None:
        return UNPACED
    rate = max(1, round(rate_bps / 8))
    return struct.pack("=I", rate) if rate < 0xFFFFFFFF else struct.pack("=Q", rate)


def total_retransmits(sock: socket.socket) -> int:
    """How many segments this connection has sent again."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TOTAL_RETRANS + 4)
    return int(struct.unpack_from("=I", info, TOTAL_RETRANS)[0])
