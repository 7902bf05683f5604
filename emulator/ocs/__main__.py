"""Process of optical switches: `python -m moefabric.emulator.ocs --socket PATH... [--forever]`.

The process needs no privilege: the fabric passes each switch's crossbar and listening sockets
(module `fd_handoff`). If PATH is a directory, or with --forever, it starts one child process for
each `*.handoff` socket that appears there.
"""

import argparse
import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from moefabric.config.plugins import ocs_dialect
from moefabric.core.errors import FabricError, SpecError
from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.fabric_link import FabricLink
from moefabric.emulator.ocs.fd_handoff import connect, receive_handoff
from moefabric.emulator.ocs.server import OcsServer
from moefabric.runtime import structured_log
from moefabric.runtime.event_loop import IN, EventLoop
from moefabric.runtime.processes import stop_signals
from moefabric.runtime.run_directory import RunDirectory, shared_name

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
    sockets = "handoff sockets of the switches, or a directory of them"
    add("--socket", required=True, type=Path, nargs="+", metavar="PATH", help=sockets)
    add("--forever", action="store_true", help="serve all sockets that appear, until SIGTERM")
    deadline = "how long to wait for the socket"
    add("--deadline", type=float, default=10.0, metavar="SECONDS", help=deadline)
    options = parser.parse_args(words)
    paths = options.socket
    is_handoff = paths[0].suffix == ".handoff"
    structured_log.start(shared_name([path.stem for path in paths]) if is_handoff else "ocs")
    try:
        with stop_signals() as stop:
            if options.forever or paths[0].is_dir():
                serve_all(paths[0], stop)
            else:
                serve(paths, stop, options.deadline)
    except FabricError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def prepare() -> None:
    """Load the built-in front ends, before the prefork server forks processes of switches."""
    for name in ("scpi.dialect:SCPI", "tl1.dialect:TL1", "restconf.dialect:RESTCONF"):
        resolve_name(ocs_dialect(f"moefabric.emulator.ocs.{name}").front_end)


def serve(paths: Sequence[Path], stop: socket.socket, deadline_s: float) -> None:
    """Serve the switches of handoff sockets, by one thread, until the fabric closes all of them.

    It also ends when `stop` becomes readable. A switch whose socket the fabric closes ends alone.

    Raises:
        FabricError: if a handoff doesn't arrive within `deadline_s`, or its facts describe no valid
            switch.
    """
    with contextlib.suppress(PermissionError):  # the real device has its own processor
        os.nice(_NICENESS)
    loop, served = EventLoop(), set(paths)

    def end(path: Path) -> None:
        served.discard(path)
        if not served:
            loop.stop()

    with contextlib.ExitStack() as resources:
        resources.callback(loop.close)
        for path in paths:
            sock = resources.enter_context(connect(path, deadline_s))
            ready = select.poll()  # another process may serve the switch
            ready.register(sock, select.POLLIN)
            ready.register(stop, select.POLLIN)
            if stop.fileno() in dict(ready.poll()):
                return
            sock.settimeout(deadline_s)
            with structured_log.part(path.stem) if len(paths) > 1 else contextlib.nullcontext():
                _start(path.stem, sock, loop, resources, partial(end, path))
        loop.watch(stop.fileno(), IN, lambda _events: loop.stop())
        loop.run()


def _start(
    name: str,
    sock: socket.socket,
    loop: EventLoop,
    resources: contextlib.ExitStack,
    on_close: Callable[[], None],
) -> None:
    """Take a switch over and serve it; `on_close` is called when the fabric closes it."""
    facts, fds = receive_handoff(sock, f"{name}: handoff")

    def end() -> None:
        server.close()
        on_close()

    try:
        listeners = {
            dialect: resources.enter_context(socket.socket(fileno=fd))
            for dialect, fd in zip(facts["listening"], fds[1:], strict=True)
        }
        crossbar = BpfCrossbar(Ports(facts["ports"]), fds[0])
        resources.callback(crossbar.close)
        fabric = FabricLink(sock, loop, end)
        server = OcsServer(crossbar, DeviceSpec.from_json(facts), fabric, loop)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        what = f"no switch can be made of {facts}: {error!r}"
        raise FabricError(f"OCS handoff: {what}") from error
    resources.callback(server.close)
    for dialect, listener in listeners.items():
        try:
            server.open(listener, dialect, facts["listening"][dialect])
        except SpecError as error:
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            listener.close()  # the package of a dialect may be absent from another container
    fabric.start(server.device)
    server.start()


def serve_all(path: Path, stop: socket.socket) -> None:
    """Serve the handoff sockets that appear at or below `path`, each in a child process."""
    serving: dict[Path, subprocess.Popen[bytes]] = {}
    is_stopped = False
    try:
        while not is_stopped:
            serving = {at: process for at, process in serving.items() if process.poll() is None}
            serving |= {at: _start_process(at) for at in handoff_sockets(path) if at not in serving}
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


def _start_process(path: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MOEFABRIC_FABRIC": path.parent.name}
    command = [sys.executable, "-m", "moefabric.emulator.ocs", "--socket", str(path)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
