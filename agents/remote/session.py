"""An SSH session as a byte stream, kept alive from here and ended with its process."""

import contextlib
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Final

from moefabric.runtime.processes import wait_or_kill

_END_S: Final = 2.0
"""Time in which the client must end after its output."""
_SEND_S: Final = 10.0
"""Time for which a client that takes no bytes may delay a request."""


class Session:
    """An ssh client whose standard input and output are a `Stream`.

    A thread sends the program and then a line break, which agents ignore, at least every
    `heartbeat_s`: a host that hears nothing knows that this side is gone.

    Args:
        source: The program to send first.
        heartbeat_s: Seconds between two signs of life.
    """

    def __init__(self, argv: Sequence[str], source: bytes, heartbeat_s: float) -> None:
        self._socket, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        self._sending = threading.Lock()  # a sign of life must not come amid a line
        self._closed = threading.Event()
        with theirs:
            # Ctrl-C is for the command here, which then closes its sessions in order.
            self._process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        self.fileno, self.recv = self._socket.fileno, self._socket.recv
        self.settimeout = self._socket.settimeout
        self._sending.acquire()  # requests wait until the program has been sent
        self._thread = threading.Thread(
            target=self._keep_alive, args=(source, heartbeat_s), name="ssh session", daemon=True
        )
        self._thread.start()

    def _keep_alive(self, source: bytes, heartbeat_s: float) -> None:
        try:
            with contextlib.suppress(OSError):  # the end of the client's output tells why it failed
                self._send(source, None)
        finally:
            self._sending.release()
        while not self._closed.wait(heartbeat_s):
            with self._sending, contextlib.suppress(OSError):
                self._socket.send(b"\n", socket.MSG_DONTWAIT)

    def sendall(self, data: bytes, /) -> None:
        """Send all of `data`, after the program."""
        with self._sending:
            self._send(data, _SEND_S)

    def _send(self, data: bytes, timeout_s: float | None) -> None:
        """Send all of `data`; raise TimeoutError if the client takes nothing for a time."""
        ready, left = select.poll(), memoryview(data)
        ready.register(self._socket, select.POLLOUT)
        while left:
            if not ready.poll(None if timeout_s is None else timeout_s * 1e3):
                raise TimeoutError(f"it takes no request for {timeout_s:g} s")
            with contextlib.suppress(BlockingIOError):
                left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]

    def outcome(self) -> tuple[int | None, str]:
        """Return the status and the error output of a client whose output has ended.

        The status is None if the client hasn't ended.
        """
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(_END_S)
        self._stderr.seek(0)
        return status, self._stderr.read().decode(errors="replace")

    def close(self) -> None:
        """End the session and, with it, the processes that it started on the host."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._process.terminate()
        wait_or_kill(self._process, _END_S)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self._stderr.close()
