"""Command line of the agent, its control channels and signals."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from moefabric.agents.engine.agent import Agent
from moefabric.agents.engine.control import ControlChannel
from moefabric.agents.engine.host_link import HostLink
from moefabric.agents.engine.payload import shared_pattern
from moefabric.agents.engine.requests import RefusedError
from moefabric.agents.engine.resources import Resources
from moefabric.agents.engine.sockets import listen_unix
from moefabric.runtime import structured_log
from moefabric.runtime.event_loop import EventLoop, Loop
from moefabric.runtime.listener import Listener, raise_descriptor_limit
from moefabric.runtime.scratch_folder import scratch_folder


def open_control_socket(
    loop: Loop,
    path: str,
    on_line: Callable[[ControlChannel, bytes], None],
    on_end: Callable[[], object] = lambda: None,
    make_room: Callable[[], bool] = lambda: False,
) -> socket.socket:
    """Accept control channels at a Unix socket that only its owner may open.

    Raises:
        RefusedError: if another agent listens there.
    """
    sock = listen_unix(path)

    def accepted(channel: socket.socket) -> None:
        fd = channel.fileno()

        def end() -> None:
            channel.close()
            on_end()

        ControlChannel(loop, (fd, fd), on_line, end)

    Listener(loop, sock, accepted, make_room)
    return sock


def prepare() -> None:
    """Prepare the memory that agents share, before the prefork server forks them."""
    shared_pattern()


def main(arguments: list[str] | None = None) -> int:
    """Run an agent: `--name s0 --control PATH` or `--name s0 --stdio`, perhaps `--ranks PATH`.

    Over standard input, it serves ranks in a private folder, which it removes at its end.
    """
    options = parse(arguments)
    return run(f"agent {options.name}", lambda cleanup: serve(options, cleanup))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of a command line; a wrong one ends the process."""
    parser = argparse.ArgumentParser(prog="agent", description="the agent of one server")
    parser.add_argument("--name", required=True, help="the server's name, such as s0")
    parser.add_argument("--control", metavar="PATH", help="take commands at this unix socket")
    parser.add_argument("--stdio", action="store_true", help="take commands from stdin")
    parser.add_argument("--ranks", metavar="PATH", help="serve ranks at this unix socket")
    parser.add_argument(
        "--silence",
        type=float,
        metavar="SECONDS",
        help="with --stdio: end after this time without a line, even an empty one",
    )
    parser.add_argument(
        "--link", type=json.loads, metavar="JSON", help="configure an interface (host_link.py)"
    )
    options = parser.parse_args(arguments)
    if not (options.control or options.stdio):
        parser.error("--control or --stdio is needed")
    return options


def run(name: str, serve: Callable[[ExitStack], None]) -> int:
    """Run a process that serves until a signal ends it, and return its exit status.

    Args:
        name: Begins the line that says why it can't.
        serve: Serves; its argument takes what is to be called at the end.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    raise_descriptor_limit()
    with suppress(OSError):  # an older kernel wakes it up to 50 µs late, which SPIN_NS covers
        Path("/proc/self/timerslack_ns").write_text("1000")
    try:
        with ExitStack() as cleanup:
            serve(cleanup)
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    return 0


def serve(options: argparse.Namespace, cleanup: ExitStack) -> None:
    """Serve the control channels and ranks until the end, and then call `cleanup`.

    Raises:
        RefusedError: if the interface or a socket can't be had.
    """
    if options.link:
        link = HostLink(options.link)
        cleanup.callback(link.close)
        link.configure()
    structured_log.start(f"agent-{options.name}")
    loop = EventLoop()
    agent = Agent(Resources(options.name, loop))
    if options.stdio and not options.ranks:
        with suppress(OSError):  # without a writable folder, there can't be ranks
            folder = cleanup.enter_context(scratch_folder("mf-ranks-"))
            options.ranks = str(folder / "ranks.sock")
    if options.stdio:
        # The agent ends with its channel, so that nothing stays behind on a host.
        channel = ControlChannel(loop, (0, 1), agent.handle_line, loop.stop)
        if options.silence is not None:
            channel.end_in_silence(int(options.silence * 1e9))
    open_sockets(agent, options.control, options.ranks, cleanup)
    loop.run()


def open_sockets(agent: Agent, control: str | None, ranks: str | None, cleanup: ExitStack) -> None:
    """Open an agent's Unix sockets, for control channels and ranks, which `cleanup` removes.

    Raises:
        RefusedError: if another agent listens there.
    """
    cleanup.callback(agent.rank_port.close)
    if ranks:
        agent.rank_port.listen(ranks)
    if control:
        make_room = agent.connections.make_room
        sock = open_control_socket(
            agent.loop, control, agent.handle_line, agent.channel_ended, make_room
        )
        cleanup.callback(Path(control).unlink)
        cleanup.callback(sock.close)
