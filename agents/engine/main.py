"""Command line of the agent, its control channels and signals."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from moefabric.agents.engine.agent import Agent
from moefabric.agents.engine.control import ControlChannel
from moefabric.agents.engine.loop import IN
from moefabric.agents.engine.payload import shared_pattern
from moefabric.agents.engine.requests import RefusedError
from moefabric.agents.engine.unix_sockets import listen_unix


def open_control_socket(agent: Agent, path: str) -> socket.socket:
    """Accept control channels at a Unix socket that only its owner may open.

    Raises:
        RefusedError: if another agent listens there.
    """
    sock = listen_unix(path)

    def accept(_mask: int) -> None:
        try:
            channel, _ = sock.accept()
        except BlockingIOError:
            return
        fd = channel.fileno()

        def end() -> None:
            channel.close()
            agent.channel_ended()

        ControlChannel(agent.loop, fd, fd, agent.handle_line, end)

    agent.loop.watch(sock.fileno(), IN, accept)
    return sock


def prepare() -> None:
    """Prepare what agents share, before the prefork server forks them."""
    shared_pattern()


def main(arguments: list[str] | None = None) -> int:
    """Run an agent: `--name s0 --control PATH` or `--name s0 --stdio`, perhaps `--ranks PATH`.

    Over standard input, it serves ranks in a private folder, which it removes at its end.

    Args:
        arguments: Command line; None for that of the process.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="agent", description="the agent of one server")
    parser.add_argument("--name", required=True, help="the server's name, such as s0")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--control", metavar="PATH", help="take commands at this unix socket")
    source.add_argument("--stdio", action="store_true", help="take commands from stdin")
    parser.add_argument("--ranks", metavar="PATH", help="serve ranks at this unix socket")
    parser.add_argument(
        "--silence",
        type=float,
        metavar="SECONDS",
        help="with --stdio: end after this time without a line, even an empty one",
    )
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with suppress(OSError):  # an older kernel wakes it up to 50 µs late, which SPIN_NS covers
        Path("/proc/self/timerslack_ns").write_text("1000")
    agent = Agent(options.name)
    sock: socket.socket | None = None
    folder: tempfile.TemporaryDirectory[str] | None = None
    try:
        if options.stdio and not options.ranks:
            with suppress(OSError):  # without a writable folder, there can't be ranks
                folder = tempfile.TemporaryDirectory(prefix="moefabric-")
                options.ranks = f"{folder.name}/ranks.sock"
        if options.ranks:
            agent.rank_port.listen(options.ranks)
        if options.stdio:
            # The agent ends with its channel, so that nothing stays behind on a host.
            channel = ControlChannel(agent.loop, 0, 1, agent.handle_line, agent.loop.stop)
            if options.silence is not None:
                channel.end_in_silence(int(options.silence * 1e9))
        else:
            sock = open_control_socket(agent, options.control)
        agent.loop.run()
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"agent {options.name}: {error}\n")
        return 1
    finally:
        agent.rank_port.close()
        if folder is not None:
            folder.cleanup()
        if sock is not None:
            sock.close()
            Path(options.control).unlink(missing_ok=True)
    return 0
