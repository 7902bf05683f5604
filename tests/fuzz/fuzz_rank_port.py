"""The port by which programs hand their ranks' tensors to an agent."""

import fcntl
import json
import os
import socket
from contextlib import suppress

from moefabric.agents.engine.exchanges import Exchanges
from moefabric.agents.engine.rank_port import SEALS, RankConnection, RankPort
from moefabric.agents.engine.resources import Resources
from moefabric.agents.fleet.exchanges import RankService
from moefabric.agents.fleet.messages import parse_message
from moefabric.runtime.event_loop import IN
from tests.support.fuzzing import FuzzTarget

_SIZE = 8192


def _memory() -> int:
    """Return shared memory that can't shrink."""
    descriptor = os.memfd_create("rank", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.truncate(descriptor, _SIZE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


_MEMORY = _memory()
_RESOURCES = Resources("s1")


def ask(data: bytes) -> None:
    """Send an agent a packet a line, with memory where the line asks for it."""
    lines = list[bytes]()
    service = RankService({}, lambda _, instant_ns: instant_ns or 0)

    def take(event: dict[str, object]) -> None:
        lines.append(json.dumps(event).encode())

    port = RankPort(_RESOURCES, Exchanges(), take, lambda: False)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    connection = RankConnection(port, near)
    with far:
        for line in data.split(b"\n"):
            descriptors = [_MEMORY] if b'"memory"' in line else []
            with suppress(BrokenPipeError):
                socket.send_fds(far, [line], descriptors)
                connection.ready(IN)
        port.exchanges.fail_all("the input has ended")
    connection.close()
    assert not connection.asked
    for line in lines:
        service.read("s1", parse_message(line))


TARGETS = (FuzzTarget("rank-port", ask),)
