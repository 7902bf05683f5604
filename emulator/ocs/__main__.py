"""Process of an optical switch: `python -m moefabric.emulator.ocs --socket PATH [--forever]`.

The process needs no privilege: the fabric passes the crossbar and the listening sockets
(module `fd_handoff`). If PATH is a directory, or with --forever, it starts one child process for
each `*.handoff` socket that appears there.
"""

import argparse
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
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
    name = "python -m moefabric.emulator.ocs"
    parser = argparse.ArgumentParser(name, description="Serve an emulated optical switch.")
    add = parser.add_argument
    add("--socket", required=True, type=Path, help="handoff socket, or a directory of them")
    add("--forever", action="store_true", help="serve all sockets that appear, until SIGTERM")
    deadline = "how long to wait for the socket"
    add("--deadline", type=float, default=10.0, metavar="SECONDS", help=deadline)
    options = parser.parse_args(words)
    path, stop = options.socket, stop_signal()
    structured_log.start(path.stem if path.suffix == ".handoff" else "ocs")
    try:
        if options.forever or path.is_dir():
            serve_all(path, stop)
        else:
            serve_one(path, stop, options.deadline)
    except FabricError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def prepare() -> None:
    """Load all front ends, before the prefork server forks a process for each switch."""
    for dialect in ocs_dialects().values():
        resolve_name(dialect.front_end)


def stop_signal() -> socket.socket:
    """Return a socket that becomes readable when SIGTERM or SIGINT comes to this process."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)  # until the process ends
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return receiver


def serve_one(path: Path, stop: socket.socket, deadline_s: float) -> None:
    """Serve the switch of one handoff socket until the fabric closes it or `stop` is readable.

    Raises:
        FabricError: if no handoff arrives within `deadline_s`, or its facts describe no valid
            switch.
    """
    with contextlib.suppress(PermissionError):  # the real device has its own processor
        os.nice(_NICENESS)
    with connect(path, deadline_s) as sock:
        ready, _, _ = select.select([sock, stop], [], [])  # another process may serve the switch
        if stop in ready:
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
            what = f"no switch can be made of {facts}: {error!r}"
            raise FabricError(f"OCS handoff: {what}") from error
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
    is_stopped = False
    try:
        while not is_stopped:
            serving = {at: process for at, process in serving.items() if process.poll() is None}
            serving |= {at: _start(at) for at in handoff_sockets(path) if at not in serving}
            # Poll: no event reports nested directories or a volume of another machine.
            is_stopped = bool(select.select([stop], [], [], POLL_S)[0])
    finally:
        for process in serving.values():
            process.terminate()
        for process in serving.values():
            process.wait(timeout=10)


def handoff_sockets(path: Path) -> list[Path]:
    """Return the handoff sockets at `path`, in that directory and in its subdirectories."""
    if path.is_dir():
        paths = sorted((*path.glob(SOCKETS), *path.glob(f"*/{SOCKETS}")))
        sockets = filter(Path.is_socket, paths)
        return [at for at in sockets if not RunDirectory(at.parent).has_died()]
    return [path] if path.is_socket() else []


def _start(path: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MOEFABRIC_FABRIC": path.parent.name}
    command = [sys.executable, "-m", "moefabric.emulator.ocs", "--socket", str(path)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
