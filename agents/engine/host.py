"""Process that runs the agents of several emulated servers.

The agents share an event loop and a receive buffer and are otherwise apart: each has its sockets,
in its server's network namespace, its timers and its secret. A signal to one of them doesn't stop
or end the others. It is a request at the host's control socket, `{"op": "signal", "server": "s0",
"number": 19}`, and has the effect of the signal on a process of its own:

* SIGSTOP: The agent handles nothing until SIGCONT. Its kernel goes on: it sends what the agent has
  given it, accepts connections, and acknowledges bytes while there is room.
* SIGKILL: The kernel closes its sockets. No transfer, peer or rank is told otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from moefabric.agents.engine.agent import Agent
from moefabric.agents.engine.control import ControlChannel
from moefabric.agents.engine.main import open_control_socket, open_sockets, parse, prepare, run
from moefabric.agents.engine.requests import Fields, RefusedError, parse_request
from moefabric.agents.engine.resources import READ, ReceiveBuffer, Resources
from moefabric.agents.engine.sockets import Network
from moefabric.runtime import structured_log
from moefabric.runtime.event_loop import EventLoop, Timer

_NICENESS = -10

__all__ = ["main", "prepare"]


class LoopShare:
    """Part of one agent in a loop that serves several: its watches and timers."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop, self.now_ns = loop, loop.now_ns
        self.watches: dict[int, tuple[int, Callable[[int], object]]] = {}
        self.held: list[tuple[int, int, Timer]] = []  # timers while suspended

    @property
    def faults(self) -> int:
        """Number of callbacks that have failed in the process."""
        return self.loop.faults

    def watch(self, fd: int, mask: int, callback: Callable[[int], object]) -> None:
        """Call `callback(events)` whenever a descriptor is ready for one of the mask's events."""
        self.watches[fd] = mask, callback
        self.loop.watch(fd, mask, callback)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor."""
        self.watches.pop(fd, None)
        self.loop.forget(fd)

    def call_at(self, at_ns: int, call: Callable[[], object], *, precise: bool = False) -> Timer:
        """Call a function at an instant of the loop's clock or just after."""
        return self.loop.call_at(at_ns, call, precise=precise, owner=self)

    def suspend(self) -> None:
        """Call nothing until `resume`."""
        for fd in self.watches:
            self.loop.forget(fd)
        self.held += self.loop.withdraw(self)

    def resume(self) -> None:
        """Go on, with what has become ready or due meanwhile."""
        for fd, (mask, callback) in self.watches.items():
            self.loop.watch(fd, mask, callback)
        self.loop.restore(self.held)
        self.held = []

    def end(self) -> None:
        """Call nothing any more, and have the kernel close the descriptors."""
        self.suspend()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in self.watches:
            os.dup2(null, fd, inheritable=False)  # the number is free once its object is gone
        os.close(null)
        self.watches, self.held = {}, []


class HostedAgent(NamedTuple):
    """Agent of the process, with its share of the loop and its network, which signals affect."""

    share: LoopShare
    network: Network


class Host:
    """The agents of a process.

    Attributes:
        agents: Those that have not been killed, by server.
    """

    def __init__(self) -> None:
        self.loop, self.buffer = EventLoop(), ReceiveBuffer(READ)
        self.agents: dict[str, HostedAgent] = {}

    def add(self, server: str, network: str) -> Agent:
        """Return the agent of a further server.

        Args:
            network: Path of its network namespace.
        """
        hosted = self.agents[server] = HostedAgent(LoopShare(self.loop), Network(network))
        return Agent(Resources(server, hosted.share, self.buffer, hosted.network))

    def signal(self, server: str, number: int) -> None:
        """Stop, continue or kill an agent; nothing if it has been killed."""
        hosted = self.agents.get(server)
        if hosted is None:
            return
        if number == signal.SIGSTOP:
            hosted.share.suspend()
        elif number == signal.SIGCONT:
            hosted.share.resume()
        elif number == signal.SIGKILL:
            del self.agents[server]
            hosted.share.end()
            hosted.network.close()
        else:
            raise RefusedError(f"number: an agent takes no signal {number}")

    def handle_line(self, control: ControlChannel, line: bytes) -> None:
        """Execute a request of the fabric process and reply."""
        reply: dict[str, object] = {"ok": True}
        try:
            request = parse_request(line)
            self._execute(request)
        except (RefusedError, ValueError) as error:
            reply = {"ok": False, "error": str(error)}
        control.send(reply)

    def _execute(self, request: Fields) -> None:
        if request.text("op") != "signal":
            raise RefusedError(f"op: knows signal, and not {request.text('op')!r}")
        self.signal(request.text("server"), request.integer("number", 1, 64))


def main(arguments: list[str]) -> int:
    """Run agents, and return the exit status.

    Args:
        arguments: The command line. `--agents` is a list, in JSON, of the network namespace and
            the command line (`moefabric.agents.engine.main`) of each agent.
    """
    parser = argparse.ArgumentParser(prog="agents", description="the agents of several servers")
    parser.add_argument("--name", required=True, help="the process's name, such as agents-0")
    parser.add_argument("--signals", required=True, metavar="PATH", help="take signals there")
    parser.add_argument("--agents", required=True, type=json.loads, metavar="JSON")
    options = parser.parse_args(arguments)
    return run(options.name, lambda cleanup: serve(options, cleanup))


def serve(options: argparse.Namespace, cleanup: ExitStack) -> None:
    """Serve until the end, and then call `cleanup`; raise RefusedError if a socket can't be had."""
    structured_log.start(options.name)
    with suppress(PermissionError):  # transfers start in time, whatever else uses the core
        os.nice(_NICENESS)
    host = Host()
    for network, arguments in options.agents:
        agent = parse(arguments)
        open_sockets(host.add(agent.name, network), agent.control, agent.ranks, cleanup)
    sock = open_control_socket(host.loop, options.signals, host.handle_line)
    cleanup.callback(sock.close)
    host.loop.run()
