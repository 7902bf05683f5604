"""A relay between two agents that changes bytes."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Edit = Callable[[bytes], bytes]


class EditingRelay:
    """A relay that edits 16 bytes at one place, counted from the first transfer's header."""

    def __init__(self, to_port: int, place: int, edit: Edit) -> None:
        self.place, self.edit = place, edit
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.far = socket.create_connection(("127.0.0.1", to_port))
        threading.Thread(target=self._forth, daemon=True).start()

    def _forth(self) -> None:
        self.near, _ = self.listening.accept()
        threading.Thread(target=self._back, daemon=True).start()
        with suppress(OSError):
            greeting = self._exactly(64)
            self.far.sendall(greeting + self._exactly(int.from_bytes(greeting[4:8], "big")))
            self.far.sendall(self._exactly(self.place))
            self.far.sendall(self.edit(self._exactly(16)))
            while came := self.near.recv(65536):
                self.far.sendall(came)

    def _back(self) -> None:
        with suppress(OSError):
            while came := self.far.recv(65536):
                self.near.sendall(came)
            self.near.shutdown(socket.SHUT_RDWR)

    def _exactly(self, count: int) -> bytes:
        whole = b""
        while len(whole) < count:
            if not (came := self.near.recv(count - len(whole))):
                raise OSError("closed")
            whole += came
        return whole

    def close(self) -> None:
        for sock in (self.listening, self.far, getattr(self, "near", self.far)):
            sock.close()
