"""The languages of an optical switch in memory, and its link to the fabric."""

import json
import logging
import socket
from collections.abc import Callable

from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.event_publisher import EventPublisher
from moefabric.emulator.ocs.fabric_link import FabricLink
from moefabric.runtime.event_loop import EventLoop
from tests.support.fuzzing import FuzzTarget
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.ocs_fuzz import TL1_LOG_IN
from tests.support.ocs_lab import OcsBench

_INPUTS_PER_SWITCH = 1000
_PASS_NS = 30_000_000


class _Client:
    """A client of a switch, which is replaced from time to time so that its state stays small."""

    def __init__(self, language: str, log_in: bytes = b"") -> None:
        self._language, self._log_in, self._inputs = language, log_in, 0
        self._bench = OcsBench()

    def read(self, data: bytes) -> None:
        """Send the input from a new client."""
        logging.getLogger("moefabric").setLevel(logging.CRITICAL)
        self._inputs += 1
        if self._inputs % _INPUTS_PER_SWITCH == 0:
            self._bench = OcsBench()
        client = self._bench.client(self._language)
        client.send(self._log_in)
        replies = client.send(data)
        self._bench.timers.advance_ns(_PASS_NS)
        assert not replies.startswith(b"HTTP/1.1 500"), replies
        client.session.end()


def _answer(connect: Callable[[socket.socket, EventLoop], None], data: bytes) -> None:
    """Let a peer send the input, and serve it until all of it has been read."""
    loop = EventLoop()
    ours, peer = socket.socketpair()
    with peer, ours:
        peer.settimeout(1)
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        connect(ours, loop)
        loop.call_at(loop.now_ns() + 1, loop.stop)  # after the lines and their replies
        loop.run()
    loop.close()


def read_fabric_link(data: bytes) -> None:
    """Read the input as lines of the fabric to the process of a switch."""
    logging.getLogger("moefabric").setLevel(logging.CRITICAL)

    def connect(sock: socket.socket, loop: EventLoop) -> None:
        link = FabricLink(sock, loop)
        link.start(OcsDevice(MemoryCrossbar(Ports(4)), loop, host=link))

    _answer(connect, data)


def read_control_request(data: bytes) -> None:
    """Read the input as lines of a caller of a switch's control socket, and forward them."""

    def forward(request: dict[str, object]) -> bool:
        json.dumps(request)
        return True

    def connect(sock: socket.socket, loop: EventLoop) -> None:
        EventPublisher(loop, forward).accept(sock)

    _answer(connect, data)


TARGETS = (
    FuzzTarget("scpi", _Client("scpi").read),
    FuzzTarget("tl1", _Client("tl1", TL1_LOG_IN).read),
    FuzzTarget("restconf", _Client("restconf").read),
    FuzzTarget("ocs-fabric-link", read_fabric_link),
    FuzzTarget("ocs-control", read_control_request),
)
