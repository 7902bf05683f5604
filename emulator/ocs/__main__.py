"""Process of an optical switch: `python -m moefabric.emulator.ocs --socket PATH [--forever]`.

The process needs no privilege: the fabric passes the crossbar and the listening sockets
(module `fd_handoff`). If PATH is a directory, or with --forever, it starts one child process for
each `*.handoff` socket that appears there.
"""

import argparse
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

from moefabric.config.plugins import OCS_DIALECTS, ocs_dialects, plugin_names
from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.selection import adopt_crossbar
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.fabric_link import FabricLink
from moefabric.emulator.ocs.fd_handoff import Facts, connect, receive_handoff
from moefabric.emulator.ocs.server import OcsServer
from moefabric.runtime import structured_log
from moefabric.runtime.event_loop import EventLoop
from moefabric.runtime.run_directory import RunDirectory

_NICENESS = -10
"""Nice value of the process, where the system permits a negative one."""
POLL_S = 0.25
SOCKETS = "*.handoff"


def main(words: list[str] | None = None) -> int:
    """Serve until the fabric closes its end or SIGTERM comes.

    Returns:
        The exit status: 0, or 1 after an error, which is printed on one line.
    """
    parser = argparse.ArgumentParser(
        prog="python -m moefabric.emulator.ocs", description="Serve an emulated optical switch."
    )
    parser.add_argument(
        "--socket", required=True, type=Path, help="handoff socket, or a directory of them"
    )
    parser.add_argument(
        "--forever", action="store_true", help="serve all sockets that appear, until SIGTERM"
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for the socket",
    )
    options = parser.parse_args(words)
    structured_log.start(process_name(options.socket))
    with stop_signal() as stop:
        try:
            if options.forever or options.socket.is_dir():
                serve_all(options.socket, stop)
            else:
                serve_one(options.socket, stop, options.deadline)
        except FabricError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def prepare() -> None:
    """Load all front ends, before the prefork server forks a process for each switch."""
    for dialect in ocs_dialects().values():
        resolve_name(dialect.front_end)


def process_name(path: Path) -> str:
    """Return the name in log lines of the process that serves a handoff socket, or many."""
    return path.stem if path.suffix == ".handoff" else "ocs"


@contextlib.contextmanager
def stop_signal() -> Iterator[socket.socket]:
    """Yield a socket that becomes readable when SIGTERM or SIGINT comes."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    with receiver, sender:
        wakeup_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        handlers = {
            number: signal.signal(number, lambda *_: None)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(wakeup_fd)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def serve_one(path: Path, stop: socket.socket, deadline_s: float) -> None:
    """Serve the switch of one handoff socket until the fabric closes it or `stop` is readable.

    Raises:
        FabricError: if no handoff arrives within `deadline_s`, or its facts describe no valid
            switch.
    """
    with contextlib.suppress(PermissionError):  # the real device has its own processor
        os.nice(_NICENESS)
    with connect(path, deadline_s) as sock:
        with selectors.DefaultSelector() as selector:  # wait: another process may serve the switch
            selector.register(sock, selectors.EVENT_READ)
            selector.register(stop, selectors.EVENT_READ)
            if any(key.fileobj is stop for key, _ in selector.select()):
                return
        sock.settimeout(deadline_s)
        facts, fds = receive_handoff(sock)
        _serve(facts, fds, sock, stop)


def _serve(facts: Facts, fds: list[int], sock: socket.socket, stop: socket.socket) -> None:
    """Serve the switch of a handoff until the fabric closes it or `stop` is readable."""
    names = facts.get("listening", ["scpi"])
    with contextlib.ExitStack() as resources:
        try:
            listeners = {
                name: resources.enter_context(socket.socket(fileno=fd))
                for name, fd in zip(names, fds[1:], strict=True)
            }
            crossbar = adopt_crossbar(facts, fds[0])
            resources.callback(crossbar.close)
            loop = EventLoop()
            fabric = FabricLink(sock, loop)
            server = OcsServer(crossbar, DeviceSpec.from_json(facts), fabric, loop)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise FabricError(
                f"OCS handoff: no switch can be made of {facts}: {error!r}"
            ) from error
        for name, listener in listeners.items():
            if name in plugin_names(OCS_DIALECTS):
                server.open(listener, name)
            else:
                listener.close()
        fabric.start(server.device)
        server.serve(stop)


def serve_all(path: Path, stop: socket.socket) -> None:
    """Serve the handoff sockets that appear at or below `path`, each in a child process."""
    serving: dict[Path, subprocess.Popen[bytes]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(stop, selectors.EVENT_READ)
        try:
            while True:
                serving = {at: process for at, process in serving.items() if process.poll() is None}
                serving |= {at: _start(at) for at in handoff_sockets(path) if at not in serving}
                # Poll: no event reports nested directories or a volume of another machine.
                if selector.select(POLL_S):
                    return
        finally:
            for process in serving.values():
                process.terminate()
            for process in serving.values():
                process.wait(timeout=10)


def handoff_sockets(path: Path) -> list[Path]:
    """Return the handoff sockets at `path`, in that directory and in its subdirectories."""
    if path.is_dir():
        candidates = (*path.glob(SOCKETS), *path.glob(f"*/{SOCKETS}"))
        return sorted(
            candidate
            for candidate in candidates
            if candidate.is_socket() and not RunDirectory(candidate.parent).has_died()
        )
    return [path] if path.is_socket() else []


def _start(path: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MOEFABRIC_FABRIC": path.parent.name}
    command = [sys.executable, "-m", "moefabric.emulator.ocs", "--socket", str(path)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
