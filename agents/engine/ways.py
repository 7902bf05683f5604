"""Ways: how a connection goes to a peer."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from agents.engine.asked import text, whole
from agents.engine.tcp import mark


class Way:
    """How a connection goes: to which peer's listening socket, by which of our NICs."""

    def __init__(self, place: str, asked: dict[str, Any]) -> None:
        self.peer = text(place, asked, "peer")
        self.path = text(place, asked, "path")
        self.address = text(place, asked, "address")
        self.port = whole(place, asked, "port", 1, 65535)
        self.dscp = whole(place, asked, "dscp", 0, 63, 0)
        self.reply_dscp = whole(place, asked, "reply_dscp", 0, 63, 0)
        self.bind = text(place, asked, "bind", "")

    def __str__(self) -> str:
        return f"{self.peer} by {self.path} at {self.address} port {self.port}"

    def socket(self, congestion: str, sndbuf: int) -> socket.socket:
        """A socket on its way there. The send buffer is bounded so that "sent" is never far from "left the server"."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            mark(sock, self.dscp)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
            if self.bind:
                sock.bind((self.bind, 0))
            with suppress(BlockingIOError):  # it is on its way
                sock.connect((self.address, self.port))
        except OSError:
            sock.close()
            raise
        return sock
