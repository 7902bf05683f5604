"""The start and the end of an agent: its options, its control channels, its signals."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from agents.engine.agent import Agent
from agents.engine.control import Control
from agents.engine.errors import RefusedError
from agents.engine.loop import IN
from agents.engine.payload import common_pattern


def serve_socket(agent: Agent, path: str) -> socket.socket:
    """Listen for control channels at a unix socket that only its owner may open."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        Path(path).unlink(missing_ok=True)
    else:
        raise RefusedError(f"{path}: an agent answers there already; stop it, or choose another path")
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
        Control(agent.loop, channel.fileno(), channel.fileno(), agent.request, channel.close)

    agent.loop.watch(sock.fileno(), IN, accept)
    return sock


def quiet_end(_signal: int, _frame: Any) -> None:
    raise SystemExit(0)


def prepare() -> None:
    """Do what every agent needs and any number of them can share, before they are forked."""
    common_pattern()


def main(words: list[str] | None = None) -> int:
    """`agent --name s0 --control PATH` or `agent --name s0 --stdio`; the status it ends with. `words` are else those it was called with."""
    parser = argparse.ArgumentParser(prog="agent", description="the agent of one server")
    parser.add_argument("--name", required=True, help="the server's name, such as s0")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--control", metavar="PATH", help="take commands at this unix socket")
    where.add_argument("--stdio", action="store_true", help="take commands from stdin")
    chosen = parser.parse_args(words)
    signal.signal(signal.SIGTERM, quiet_end)
    signal.signal(signal.SIGINT, quiet_end)
    with suppress(OSError):  # an older kernel wakes us up to 50 µs late, which SPIN_NS covers
        Path("/proc/self/timerslack_ns").write_text("1000")
    agent = Agent(chosen.name)
    sock: socket.socket | None = None
    try:
        if chosen.stdio:
            # The end of the channel is the end of the agent: nothing stays behind on a host.
            Control(agent.loop, 0, 1, agent.request, agent.loop.stop)
        else:
            sock = serve_socket(agent, chosen.control)
        agent.loop.run()
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"agent {chosen.name}: {error}\n")
        return 1
    finally:
        if sock is not None:
            sock.close()
            Path(chosen.control).unlink(missing_ok=True)
    return 0
