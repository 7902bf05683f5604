"""A TCP connection with a congestion control by name, whose ends are in this process."""

import socket
import struct
import time
from threading import Thread

from moefabric.agents.engine.sockets import SO_MAX_PACING_RATE, kept_pace
from moefabric.emulator.link.hosts import LinkedHosts

BLOCK = bytes(20_000)


class Flow:
    """A connection whose ends are in this process."""

    def __init__(self, name: str, net: LinkedHosts | None = None) -> None:
        here, there = (host.call for host in net.hosts) if net else (lambda f: f(),) * 2
        with there(socket.socket) as listener:
            self._choose(listener, name)
            listener.bind((net.hosts[1].address if net else "127.0.0.1", 0))
            listener.listen()
            self.near = here(socket.socket)
            self._choose(self.near, name)
            self.near.settimeout(10)
            self.near.connect(listener.getsockname())
            self.far = listener.accept()[0]

    @staticmethod
    def _choose(sock: socket.socket, name: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())

    def send(self, blocks: int = 1, block: bytes = BLOCK) -> None:
        """Send blocks, each after the one before has arrived."""
        self.far.settimeout(10)
        for _ in range(blocks):
            left = len(block)
            sender = Thread(target=self.near.sendall, args=(block,))
            sender.start()
            while left:
                left -= len(self.far.recv(left))
            sender.join()

    def window(self) -> int:
        return self._fact(80)

    def threshold(self) -> int:
        return self._fact(76)

    def pace(self, bytes_s: int, *, ends: bool = False) -> None:
        option = kept_pace(8.0 * bytes_s, ends=ends)
        self.near.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, option)

    def two_arrivals_ns(self, first: bytes, second: bytes, then: int) -> int:
        """Send bytes, the second ones at another pace; return the time between their arrivals."""
        self.near.sendall(first, socket.MSG_EOR)  # or the second ones would join its packet
        self.pace(then)
        self.near.sendall(second)
        self.far.recv(len(first), socket.MSG_WAITALL)
        begin_ns = time.monotonic_ns()
        self.far.recv(len(second), socket.MSG_WAITALL)
        return time.monotonic_ns() - begin_ns

    def _fact(self, offset: int) -> int:
        info = self.near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return int(struct.unpack_from("=I", info, offset)[0])

    def close(self) -> None:
        self.near.close()
        self.far.close()
