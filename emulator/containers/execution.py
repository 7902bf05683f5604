"""Program that runs a command in a container, like `docker exec`, with its streams and signals.

`python emulator/containers/execution.py CONTAINER [NAME=VALUE]... -- COMMAND...` runs the command
with the container's files, user, variables and limits. Standard streams, signals, the size of a
terminal and the exit status are passed on.
"""

import os
import shutil
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

if not __package__:  # run by its path: import from the repository, not from this folder
    sys.path = [*sys.path[1:], str(Path(__file__).absolute().parents[3])]

from moefabric.core.errors import MoefabricError
from moefabric.emulator.containers.engine import connect

_STANDARD_ERROR: Final = 2
"""Number of the stream in the frames of the output (attach in Docker's API)."""
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
    """Command in a container."""

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
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a thread waits for them
        response = self._api.exec_start(self._id, socket=True, tty=self._has_terminal)
        stream: socket.socket = getattr(response, "_sock", response)
        for target in (partial(_send_input, stream), self._pass_signals_on):
            threading.Thread(target=target, daemon=True).start()
        with closing(response), self._terminal():
            pass_output_on(stream, has_terminal=self._has_terminal)
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

    def _pass_signals_on(self) -> None:
        """Send the signals that this process receives to the command."""
        while True:
            signal_command(self._api, self._id, signal.sigwait(_SIGNALS))


def signal_command(api: Any, command: str, number: int) -> None:
    """Send a signal to a command of the engine, unless it has ended.

    The engine keeps the pid of a command that has ended, and another process may have it by then.
    """
    if pid := api.exec_inspect(command)["Pid"]:
        with suppress(ProcessLookupError), open(os.pidfd_open(pid)) as process:  # noqa: PTH123
            if api.exec_inspect(command)["Running"]:
                signal.pidfd_send_signal(process.fileno(), number)


def pass_output_on(stream: socket.socket, *, has_terminal: bool) -> None:
    """Write the output of a command until it ends; without a terminal, it arrives in frames."""
    from docker.utils.socket import frames_iter

    with suppress(ConnectionResetError):
        for number, data in frames_iter(stream, has_terminal):
            output = (sys.stderr if number == _STANDARD_ERROR else sys.stdout).buffer
            output.write(data)
            output.flush()


def _send_input(stream: socket.socket) -> None:
    """Send all of standard input, then its end."""
    with suppress(OSError):  # the command has ended, or reads no more
        while part := os.read(0, _PART_BYTES):
            stream.sendall(part)
        stream.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
