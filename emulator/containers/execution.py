"""Program that runs a command in a container, like `docker exec`, and passes on all that it does.

`python emulator/containers/execution.py CONTAINER [NAME=VALUE]... -- COMMAND...` runs the command
with the container's files, user, variables and limits. Standard streams, signals, the size of a
terminal and the exit status are passed on.
"""

import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

if not __package__:  # run by its path: import from the repository, not from this folder
    sys.path = [*sys.path[1:], str(Path(__file__).absolute().parents[3])]

from moefabric.core.errors import MoefabricError
from moefabric.emulator.containers.engine import connect

_FRAME: Final = struct.Struct(">BxxxI")
"""Header of a part of the output: number of the stream, and length (attach in Docker's API)."""
_PART_BYTES: Final = 1 << 16
_SIGNALS: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FAILED: Final = 125
"""Exit status if the engine refuses the command, as that of `docker exec`."""


def execution_argv(container: str, variables: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return the argv of this program.

    Args:
        container: ID of the container.
        variables: additional variables, each `NAME=VALUE`.
        command: the command.
    """
    return [sys.executable, str(Path(__file__).absolute()), container, *variables, "--", *command]


def main(words: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    from docker.errors import DockerException

    end = words.index("--")
    container, variables, command = words[0], words[1:end], words[end + 1 :]
    try:
        with closing(connect()) as client:
            return Execution(client.api, container, variables, command).run()
    except (MoefabricError, DockerException) as error:
        explanation = getattr(error, "explanation", None) or error
        sys.stderr.write(f"{container[:12]}: {explanation}\n")
        return _FAILED


class Execution:
    """One command in a container."""

    def __init__(
        self, api: Any, container: str, variables: Sequence[str], command: Sequence[str]
    ) -> None:
        """Create the command; `run` starts it."""
        self._api = api
        self._has_terminal = os.isatty(0) and os.isatty(1)
        terminal = [f"TERM={os.environ.get('TERM', 'xterm')}"] if self._has_terminal else []
        created = api.exec_create(
            container,
            list(command),
            stdin=True,
            tty=self._has_terminal,
            environment=[*terminal, *variables],
        )
        self._id: str = created["Id"]

    def run(self) -> int:
        """Run the command and return its exit status."""
        pending: list[int] = []
        for number in _SIGNALS:
            signal.signal(number, lambda received, _frame: pending.append(received))
        wake_reader, wake_writer = os.pipe()
        for fd in (wake_reader, wake_writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_writer)
        response = self._api.exec_start(self._id, socket=True, tty=self._has_terminal)
        stream: socket.socket = getattr(response, "_sock", response)
        with closing(response), self._terminal():
            self._pass_on(stream, wake_reader, pending)
        return int(self._api.exec_inspect(self._id)["ExitCode"] or 0)

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """Pass keys on as they are, if there is a terminal, and its size."""
        if not self._has_terminal:
            yield
            return
        signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        self._resize()
        settings = termios.tcgetattr(0)
        tty.setraw(0)
        try:
            yield
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, settings)

    def _resize(self) -> None:
        from docker.errors import APIError

        columns, lines = shutil.get_terminal_size()
        with suppress(APIError):  # the command has ended
            self._api.exec_resize(self._id, height=lines, width=columns)

    def _pass_on(self, stream: socket.socket, wake: int, pending: list[int]) -> None:
        """Pass input, output and signals on until the output ends."""
        frames = OutputFrames()
        threading.Thread(target=_send_input, args=(stream,), name="input", daemon=True).start()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while True:
                ready = [key.fd for key, _ in selector.select()]
                if wake in ready:
                    os.read(wake, _PART_BYTES)
                    self._signal(pending)
                if stream.fileno() not in ready:
                    continue
                if not (received := _receive(stream)):
                    return
                parts = [(1, received)] if self._has_terminal else frames.parts(received)
                for fd, data in parts:
                    _write_all(fd, data)

    def _signal(self, pending: list[int]) -> None:
        """Send the received signals to the command."""
        pid = self._api.exec_inspect(self._id)["Pid"]
        while pending:
            number = pending.pop(0)
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


def _send_input(stream: socket.socket) -> None:
    """Send all of standard input, then its end."""
    with suppress(OSError):  # the command has ended, or reads no more
        while part := os.read(0, _PART_BYTES):
            stream.sendall(part)
        stream.shutdown(socket.SHUT_WR)


def _receive(stream: socket.socket) -> bytes:
    """Return the command's next output; empty at the end."""
    try:
        return stream.recv(_PART_BYTES)
    except ConnectionResetError:
        return b""


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class OutputFrames:
    """Output that arrives in frames, each of standard output or standard error."""

    def __init__(self) -> None:
        """Start with nothing received."""
        self._received = b""

    def parts(self, received: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the frames that received bytes complete: the stream (1 or 2) and its bytes."""
        self._received += received
        while len(self._received) >= _FRAME.size:
            number, length = _FRAME.unpack_from(self._received)
            end = _FRAME.size + length
            if len(self._received) < end:
                return
            data, self._received = self._received[_FRAME.size : end], self._received[end:]
            yield (2 if number == 2 else 1), data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
