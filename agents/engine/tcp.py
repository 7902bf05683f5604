"""Linux TCP sockets: packet marks, pacing, retransmissions and connections by a chosen NIC."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from moefabric.agents.engine.requests import Fields

SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; Python has no constant for it
TOTAL_RETRANS = 100  # offset of tcpi_total_retrans in struct tcp_info, linux/tcp.h
UNPACED = struct.pack("=I", 0xFFFFFFFF)


def tcp_socket(address: str) -> socket.socket:
    """Return a non-blocking TCP socket of an address's family."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def set_congestion_control(sock: socket.socket, name: str) -> None:
    """Choose the congestion control of a socket; for a listening one, of those it accepts."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def set_dscp(sock: socket.socket, dscp: int) -> None:
    """Mark the packets of a socket; the DSCP selects the NIC by which they leave."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)


def pacing_option(rate_bps: float | None) -> bytes:
    """Return SO_MAX_PACING_RATE in bytes per second: four bytes, or eight beyond 34 Gb/s."""
    if rate_bps is None:
        return UNPACED
    rate = max(1, round(rate_bps / 8))
    return struct.pack("=I", rate) if rate < 0xFFFFFFFF else struct.pack("=Q", rate)  # Linux 4.20


def total_retransmits(sock: socket.socket) -> int:
    """Return how many segments a connection has retransmitted."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TOTAL_RETRANS + 4)
    return int(struct.unpack_from("=I", info, TOTAL_RETRANS)[0])


class Destination:
    """A peer's data port and the path to it, as a connect request names them.

    If a relay is named, the address and the port are the relay's.

    Args:
        fields: The path in the request.
        congestion: TCP congestion control.
        sndbuf: Send buffer in bytes. With a small one, bytes that count as sent have nearly left.
    """

    def __init__(self, fields: Fields, congestion: str, sndbuf: int) -> None:
        self.peer, self.path = fields.text("peer"), fields.text("path")
        self.address, self.port = fields.text("address"), fields.integer("port", 1, 65535)
        self.dscp = fields.integer("dscp", 0, 63, 0)
        self.reply_dscp = fields.integer("reply_dscp", 0, 63, 0)
        self.bind = fields.text("bind", "")
        self.secret = fields.text("secret", "")
        self.relay = fields.text("relay", "")
        self.relay_secret = fields.text("relay_secret", "")
        self.congestion, self.sndbuf = congestion, sndbuf

    def __str__(self) -> str:
        relay = f" over {self.relay}" if self.relay else ""
        return f"{self.peer} by {self.path}{relay} at {self.address} port {self.port}"

    def start_connecting(self, dscp: int | None = None) -> socket.socket:
        """Return a socket that connects, with the destination's mark unless one is given."""
        sock = tcp_socket(self.address)
        try:
            set_dscp(sock, self.dscp if dscp is None else dscp)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_congestion_control(sock, self.congestion)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.sndbuf)
            if self.bind:
                sock.bind((self.bind, 0))
            with suppress(BlockingIOError):  # in progress
                sock.connect((self.address, self.port))
        except OSError:
            sock.close()
            raise
        return sock
