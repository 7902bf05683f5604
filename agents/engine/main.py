"""Command line of the agent, its control channels and signals."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from moefabric.agents.engine.agent import Agent
from moefabric.agents.engine.control import ControlChannel
from moefabric.agents.engine.loop import IN
from moefabric.agents.engine.payload import shared_pattern
from moefabric.agents.engine.requests import RefusedError


def open_control_socket(agent: Agent, path: str) -> socket.socket:
    """Accept control channels at a Unix socket that only its owner may open.

    Raises:
        RefusedError: if another agent listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        Path(path).unlink(missing_ok=True)
    else:
        raise RefusedError(
            f"{path}: an agent answers there already; stop it, or choose another path"
        )
    finally:
        probe.close()
    umask = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(umask)
    sock.listen(16)

    def accept(_mask: int) -> None:
        try:
            channel, _ = sock.accept()
        except BlockingIOError:
            return
        fd = channel.fileno()
        ControlChannel(agent.loop, fd, fd, agent.handle_line, channel.close)

    agent.loop.watch(sock.fileno(), IN, accept)
    return sock


def prepare() -> None:
    """Prepare what agents share, before the prefork server forks them."""
    shared_pattern()


def main(arguments: list[str] | None = None) -> int:
    """Run an agent: `--name s0 --control PATH` or `--name s0 --stdio`.

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
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with suppress(OSError):  # an older kernel wakes it up to 50 µs late, which SPIN_NS covers
        Path("/proc/self/timerslack_ns").write_text("1000")
    agent = Agent(options.name)
    sock: socket.socket | None = None
    try:
        if options.stdio:
            # The agent ends with its channel, so that nothing stays behind on a host.
            ControlChannel(agent.loop, 0, 1, agent.handle_line, agent.loop.stop)
        else:
            sock = open_control_socket(agent, options.control)
        agent.loop.run()
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"agent {options.name}: {error}\n")
        return 1
    finally:
        if sock is not None:
            sock.close()
            Path(options.control).unlink(missing_ok=True)
    return 0
