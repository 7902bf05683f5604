"""Control channels of an agent, and what its fleet reads by them."""

import errno
import socket
from typing import cast
from unittest import mock

from moefabric.agents.engine import memory
from moefabric.agents.engine.agent import Agent
from moefabric.agents.engine.control import ControlChannel
from moefabric.agents.engine.requests import Fields
from moefabric.agents.engine.resources import Resources
from moefabric.agents.engine.sockets import Network
from moefabric.agents.fleet.channel import Channel, Stream
from moefabric.agents.fleet.exchanges import RankService
from moefabric.agents.fleet.inflight import flow_records
from moefabric.core.errors import AgentError
from moefabric.core.flows import PacedFlow
from moefabric.runtime.event_loop import EventLoop
from tests.support.fuzzing import FuzzTarget

_FLOWS = [PacedFlow("s1", "s1", "o0", 5, None)]
_MEMORY = 1 << 16


class _Requester:
    """A control channel whose replies nobody reads."""

    open = True

    def send(self, message: dict[str, object]) -> None:
        """Drop a message."""


class _Replies:
    """A stream of bytes that ends."""

    def __init__(self, data: bytes) -> None:
        self.unread = data

    def settimeout(self, timeout: float | None, /) -> None:
        """Do nothing."""

    def recv(self, _size: int, /) -> bytes:
        """Return all that is left."""
        data, self.unread = self.unread, b""
        return data


def _no_socket(*_: object, **__: object) -> socket.socket:
    raise OSError(errno.EADDRNOTAVAIL, "no sockets here")


def execute(data: bytes) -> None:
    """Have an agent without sockets execute a request a line, and what is due by then."""
    with (
        mock.patch.object(Network, "tcp_socket", _no_socket),
        mock.patch.object(memory, "available_bytes", return_value=_MEMORY),
    ):
        loop = EventLoop()
        agent = Agent(Resources("s1", loop))
        requester = cast(ControlChannel, _Requester())
        for line in data.split(b"\n"):
            agent.handle_line(requester, line)
            loop.fire_timers()
        agent.close(Fields({}))
        loop.epoll.close()
    assert not loop.faults


def read_replies(data: bytes) -> None:
    """Read what an agent sends as its fleet does."""
    channel = Channel("s1", cast(Stream, _Replies(data)))
    channel.forget(7)
    while not channel.gone:
        channel.read()
    service = RankService({}, lambda _, instant_ns: instant_ns or 0)
    for event in channel.exchange_events:
        service.read("s1", event)
    for report in channel.reports.values():
        try:
            flow_records(1, _FLOWS, {"s1": report}, lambda _, instant_ns: instant_ns or 0)
        except AgentError:
            continue


TARGETS = (FuzzTarget("agent-control", execute), FuzzTarget("agent-channel", read_replies))
