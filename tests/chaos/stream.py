"""Stream of datagrams between two servers, whose loss is counted."""

import socket
import threading
from contextlib import suppress
from typing import Final

from moefabric.core.closing import Closing
from moefabric.emulator.linux import namespaces

PERIOD_S: Final = 0.02
PORT: Final = 17170


class Stream(Closing):
    """Datagrams every 20 ms, sent and received by a thread. Closing it ends the thread.

    Attributes:
        sent: how many were sent.
        received: how many have arrived.
    """

    def __init__(self, sender: str | int, receiver: str | int, address: str) -> None:
        """Start the stream.

        Args:
            sender: the sender's network namespace: a path, or a process or thread in it.
            receiver: the receiver's.
            address: the receiver's address.
        """
        self.sent = self.received = 0
        self._to = address, PORT
        self._end = threading.Event()
        self._in, self._out = (namespaces.run_in(place, _socket) for place in (receiver, sender))
        self._in.bind(self._to)
        self._thread = threading.Thread(target=self._run, name="stream")
        self._thread.start()

    @property
    def lost(self) -> int:
        """How many have not arrived, with those that are under way."""
        return self.sent - self.received

    def close(self) -> None:
        """End the thread, and close the sockets, which hold their namespaces."""
        self._end.set()
        self._thread.join()
        self._in.close()
        self._out.close()

    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            self.sent += 1
            with suppress(OSError):  # without a network
                self._out.sendto(b"datagram", self._to)
            with suppress(BlockingIOError):
                while self._in.recv(64):
                    self.received += 1


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
