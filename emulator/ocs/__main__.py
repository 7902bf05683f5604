"""The process of an optical switch: `python -m emulator.ocs --plant PATH [--forever]`.

It needs no privilege: the fabric hands it the mirrors and the address (emulator.plant). With a directory for PATH, or --forever, it
serves every `*.plant` that appears there, each in a process of its own, for as long as that lives.
"""

import argparse
import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from emulator.loop import Loop
from emulator.mirrors import taken_over
from emulator.ocs.build import built
from emulator.ocs.control import Fabric
from emulator.ocs.languages import LANGUAGES
from emulator.ocs.server import Server
from emulator.plant import Facts, connected, receive
from moefabric.errors import FabricError

_AHEAD = 10
"""By how much a switch goes before other programs, where it may."""
LOOK_AGAIN_S = 0.25
PLANTS = "*.plant"


def main(words: list[str] | None = None) -> int:
    """Serve until the fabric's end closes or SIGTERM comes: 0. 1 with one line for anything else."""
    parser = argparse.ArgumentParser(
        prog="python -m emulator.ocs", description="Serve an emulated optical switch."
    )
    parser.add_argument(
        "--plant", required=True, type=Path, help="the fabric's socket, or a directory of them"
    )
    parser.add_argument("--forever", action="store_true", help="serve whatever plants appear, until SIGTERM")
    parser.add_argument(
        "--deadline", type=float, default=10.0, metavar="SECONDS", help="wait for the socket so long"
    )
    chosen = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="ocs: %(message)s")
    with told_to_stop() as stop:
        try:
            if chosen.forever or chosen.plant.is_dir():
                serve_all(chosen.plant, stop)
            else:
                serve_one(chosen.plant, stop, chosen.deadline)
        except FabricError as wrong:
            print(wrong, file=sys.stderr)
            return 1
    return 0


@contextlib.contextmanager
def told_to_stop() -> Iterator[socket.socket]:
    """A socket that has something to read once SIGTERM or SIGINT has come."""
    hear, say = socket.socketpair()
    say.setblocking(False)
    with hear, say:
        before = signal.set_wakeup_fd(say.fileno(), warn_on_full_buffer=False)
        kept = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield hear
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in kept.items():
                signal.signal(number, handler)


def serve_one(path: Path, stop: socket.socket, deadline_s: float) -> None:
    """Serve one plant until its end closes, or `stop` has something to read. FabricError if it can't be."""
    with contextlib.suppress(
        PermissionError
    ):  # a device has a processor of its own, and doesn't wait for servers'
        os.nice(-_AHEAD)
    with connected(path, deadline_s) as plant:
        with selectors.DefaultSelector() as waiting:  # the fabric's turn may come after another process's
            waiting.register(plant, selectors.EVENT_READ)
            waiting.register(stop, selectors.EVENT_READ)
            if any(key.fileobj is stop for key, _ in waiting.select()):
                return
        plant.settimeout(deadline_s)
        facts, fds = receive(plant)
        with contextlib.ExitStack() as held:
            _serve(facts, fds, plant, stop, held)


def _serve(
    facts: Facts, fds: list[int], plant: socket.socket, stop: socket.socket, held: contextlib.ExitStack
) -> None:
    """Serve the switch that was handed over; `held` lets go of it."""
    try:
        listeners = _listeners(facts, fds[1:], held)
        crossbar = taken_over(facts, fds[0])
        held.callback(crossbar.close)
        loop = Loop()
        fabric = Fabric(plant, loop)
        server = Server(crossbar, built(facts), fabric, loop)
    except (IndexError, KeyError, TypeError, ValueError) as wrong:
        raise FabricError(f"plant: no switch can be made of {facts}: {wrong!r}") from wrong
    server.open_all(listeners, LANGUAGES)
    fabric.serve(server.store)
    server.serve(stop)


def _listeners(facts: Facts, fds: list[int], held: contextlib.ExitStack) -> dict[str, socket.socket]:
    """The listening sockets that were handed over, by the language that is spoken there."""
    names = facts.get("listening", ["scpi"])
    if len(fds) != len(names):
        raise FabricError(
            f"plant: an address each for {names} was to be handed over, not {len(fds)} descriptors"
        )
    return {name: held.enter_context(socket.socket(fileno=fd)) for name, fd in zip(names, fds, strict=True)}


def serve_all(path: Path, stop: socket.socket) -> None:
    """Serve every plant at `path`, or in the directory `path` and those in it, each by a process of its own."""
    serving: dict[Path, subprocess.Popen[bytes]] = {}
    with selectors.DefaultSelector() as waiting:
        waiting.register(stop, selectors.EVENT_READ)
        try:
            while True:
                serving = {plant: process for plant, process in serving.items() if process.poll() is None}
                serving |= {plant: _process(plant) for plant in plants(path) if plant not in serving}
                # Directories of directories, perhaps on another machine's volume, have no one event to wait for.
                if waiting.select(LOOK_AGAIN_S):
                    return
        finally:
            for process in serving.values():
                process.terminate()
            for process in serving.values():
                process.wait(timeout=10)


def plants(path: Path) -> list[Path]:
    """The plant sockets there now."""
    if path.is_dir():
        return sorted(found for found in (*path.glob(PLANTS), *path.glob(f"*/{PLANTS}")) if found.is_socket())
    return [path] if path.is_socket() else []


def _process(plant: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MOEFABRIC_FABRIC": plant.parent.name}
    command = [sys.executable, "-m", "emulator.ocs", "--plant", str(plant)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
