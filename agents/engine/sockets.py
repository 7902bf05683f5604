"""Sockets: TCP by a chosen NIC, private Unix sockets."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from moefabric.agents.engine.requests import Fields, RefusedError

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; Python has no constant for it
# Offsets of tcpi_total_retrans and tcpi_data_segs_out in struct tcp_info, linux/tcp.h
TOTAL_RETRANS, DATA_SEGS_OUT = 100, 156
KEEPS_PACE = "paced_"
"""Start of the names of congestion controls that keep a socket's pace from the next packet on, and
take its lowest bit for a mark (`emulator.congestion.paced`, which agents can't import)."""
UNPACED = struct.pack("=I", 0xFFFFFFFF)
NO_LINGER = struct.pack("ii", 1, 0)  # SO_LINGER by which a socket is reset when it is closed


class Network:
    """The network namespace in which an agent opens its sockets; they stay in it.

    In a `with`, the calling thread is in the namespace.

    Args:
        path: Path of the namespace; empty for that of the process.
    """

    def __init__(self, path: str = "") -> None:
        self._inside = os.open(path, os.O_RDONLY) if path else -1
        self._outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY) if path else -1

    def __enter__(self) -> None:
        self._enter(self._inside)

    def __exit__(self, *_: object) -> None:
        self._enter(self._outside)

    def close(self) -> None:
        """Release the namespace, which ends unless others hold it."""
        for fd in {self._inside, self._outside} - {-1}:
            os.close(fd)
        self._inside = self._outside = -1

    def tcp_socket(self, address: str) -> socket.socket:
        """Return a non-blocking TCP socket of an address's family."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self:
            return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    @staticmethod
    def _enter(namespace: int) -> None:
        if namespace >= 0 and _LIBC.setns(namespace, _CLONE_NEWNET) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


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


def kept_pace(rate_bps: float | None, *, ends: bool = False) -> bytes:
    """Return SO_MAX_PACING_RATE for a congestion control that keeps paces.

    Args:
        rate_bps: The rate; None for unlimited. It is rounded down to two bytes a second.
        ends: Whether all bytes of the transfer are queued: its last packet then delays no other.
    """
    if rate_bps is None:
        return UNPACED
    return struct.pack("=Q", max(2, int(rate_bps / 8) & ~1) | ends)


def total_retransmits(sock: socket.socket) -> int:
    """Return how many segments a connection has retransmitted."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TOTAL_RETRANS + 4)
    return int(struct.unpack_from("=I", info, TOTAL_RETRANS)[0])


def sent_segments(sock: socket.socket) -> int:
    """Return how many segments of data a connection has sent."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, DATA_SEGS_OUT + 4)
    return int(struct.unpack_from("=I", info, DATA_SEGS_OUT)[0])


class Destination:
    """A peer's data port and the path to it, as a connect request names them.

    If a relay is named, the address and the port are the relay's.

    Args:
        sndbuf: Send buffer in bytes. With a small one, bytes that count as sent have nearly left.
    """

    def __init__(self, fields: Fields, congestion: str, sndbuf: int) -> None:
        self.peer, self.path = fields.text("peer"), fields.text("path")
        self.address, self.port = fields.text("address"), fields.integer("port", 1, 65535)
        self.source = fields.text("source", "")
        self.dscp = fields.integer("dscp", 0, 63, 0)
        self.reply_dscp = fields.integer("reply_dscp", 0, 63, 0)
        self.secret = fields.text("secret", "")
        self.relay = fields.text("relay", "")
        self.relay_secret = fields.text("relay_secret", "")
        self.congestion, self.sndbuf = congestion, sndbuf

    def __str__(self) -> str:
        relay = f" over {self.relay}" if self.relay else ""
        return f"{self.peer} by {self.path}{relay} at {self.address} port {self.port}"

    def start_connecting(self, network: Network, dscp: int | None = None) -> socket.socket:
        """Return a socket that connects, with the destination's mark unless one is given."""
        sock = network.tcp_socket(self.address)
        try:
            set_dscp(sock, self.dscp if dscp is None else dscp)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_congestion_control(sock, self.congestion)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.sndbuf)
            if self.source:
                sock.bind((self.source, 0))
            with suppress(BlockingIOError):  # in progress
                sock.connect((self.address, self.port))
        except OSError:
            sock.close()
            raise
        return sock


def listen_unix(path: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a listening socket that only its owner may open.

    Args:
        path: Where it listens; the socket of an agent that has ended is replaced. With `@` in
            front it is a name in the network namespace, whose programs may all connect.
        kind: `SOCK_STREAM` or `SOCK_SEQPACKET`.

    Raises:
        RefusedError: if another agent listens there.
    """
    is_name = path.startswith("@")
    address = f"\0{path[1:]}" if is_name else path
    probe = socket.socket(socket.AF_UNIX, kind)
    try:
        probe.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        if not is_name:
            Path(path).unlink(missing_ok=True)
    else:
        raise RefusedError(
            f"{path}: an agent answers there already; stop it, or choose another path"
        )
    finally:
        probe.close()
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    umask = os.umask(0o177)
    try:
        sock.bind(address)
    finally:
        os.umask(umask)
    sock.listen(64)
    return sock
