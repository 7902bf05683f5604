"""The port of ranks: a Unix socket by which programs on this server have their tensors exchanged.

Each packet of the socket is a JSON object, perhaps with the descriptor of shared memory. A rank
joins, hands over memory, and asks for exchanges:

    {"op": "join", "rank": 3}
    {"op": "memory", "memory": 1}                     with a memfd that can't shrink
    {"op": "exchange", "id": 7, "name": "0", "group": [0, 1, 2, 3], "number": 0,
     "sends": [...], "receives": [...], "dtype": "float32", "tokens": null,
     "input": [1, 0, 4096], "output": [1, 4096, 8192]}     memory, begin and end
    {"op": "overdue", "id": 7, "seconds": 30}         the rank's time-out has passed
    {"op": "forget", "memory": 1}
    {"op": "leave"}

The replies are `{"id": 7, "error": ""}` when an exchange has ended, and `{"id": null, "error":
"..."}` for a packet that is refused. All channels that said hello learn what ranks ask for.
"""

from __future__ import annotations

import array
import fcntl
import json
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from moefabric.agents.engine.exchanges import Ask, ExchangeKey, Exchanges, blocks, exchange_key
from moefabric.agents.engine.requests import Fields, RefusedError, parse_request
from moefabric.agents.engine.resources import DataConnection, Resources
from moefabric.agents.engine.sockets import listen_unix
from moefabric.runtime.event_loop import BROKEN, IN, NOW, OUT
from moefabric.runtime.listener import Listener

LONGEST_PACKET = 1 << 20
SEALS = fcntl.F_SEAL_SHRINK  # shorter memory than was mapped would end the agent by SIGBUS


@dataclass(eq=False)
class RankPort:
    """The ranks of this server.

    Attributes:
        send_event: Sends an event to all channels that said hello.
        make_room: Closes a connection so that a rank's can be accepted, if there are too many.
        path: Path of the socket; empty before `listen`.
        ranks: The ranks that have joined, by number.
        connections: The connections of all ranks, joined or not.
    """

    resources: Resources
    exchanges: Exchanges
    send_event: Callable[[dict[str, Any]], object]
    make_room: Callable[[], bool]
    path: str = ""
    ranks: dict[int, RankConnection] = field(default_factory=dict)
    connections: set[RankConnection] = field(default_factory=set)

    def listen(self, path: str) -> None:
        """Accept ranks at a Unix socket that only its owner may open.

        Raises:
            RefusedError: if another agent listens there.
        """
        sock = listen_unix(path, socket.SOCK_SEQPACKET)
        self.listener = Listener(
            self.resources.loop, sock, partial(RankConnection, self), self.make_room
        )
        self.path = path

    def dismiss(self) -> None:
        """Disconnect all ranks, and forget their requests."""
        if self.path:
            self.listener.accept()
        self.exchanges.fail_all("the job has ended")
        for connection in list(self.connections):
            connection.close()

    def close(self) -> None:
        """Disconnect all ranks and remove the socket."""
        self.dismiss()
        if self.path:
            self.listener.close()
            Path(self.path).unlink(missing_ok=True)
            self.path = ""

    def pending_events(self) -> list[dict[str, Any]]:
        """Return the events of the exchanges that are pending, for a channel that says hello."""
        requests = (connection.asked for connection in self.ranks.values())
        return [event for asks in requests for event, _ in asks.values()]


class RankConnection(DataConnection):
    """The connection of one rank.

    Attributes:
        rank: The rank's number; -1 before it has joined.
        memories: Shared memory of the rank, by its number.
        asked: Event and key of each pending exchange, by request number.
    """

    def __init__(self, port: RankPort, sock: socket.socket) -> None:
        super().__init__(port.resources)
        self.port, self.sock = port, sock
        self.rank = -1
        self.memories: dict[int, memoryview] = {}
        self.asked: dict[int, tuple[dict[str, Any], ExchangeKey]] = {}
        self.outbox: deque[bytes] = deque()
        port.connections.add(self)
        self.watch()

    def transfer(self, mask: int) -> None:
        """Read and write packets; raise OSError if the connection broke."""
        if mask & OUT:
            self._flush()
        while mask & (IN | BROKEN) and not self.closed:
            self._read()

    def send(self, message: dict[str, Any]) -> None:
        """Send one packet."""
        if not self.closed:
            self.outbox.append(json.dumps(message).encode())
            with suppress(OSError):  # the loop reports the end of a rank
                self._flush()

    def close(self, *, reset: bool = False) -> bool:
        """Close the connection; return whether it was open."""
        self.port.connections.discard(self)
        if self.port.ranks.get(self.rank) is self:
            del self.port.ranks[self.rank]
        return super().close(reset=reset)

    def lose(self, why: str) -> None:
        """Close the connection, and report that the rank has ended without leaving."""
        if self.close() and self.rank >= 0:
            self.port.send_event({"event": "rank_lost", "rank": self.rank, "why": why})

    def watch(self) -> None:
        """Wait for packets, and for room for those that are not sent."""
        self.loop.watch(self.sock.fileno(), IN | OUT if self.outbox else IN, self.ready)

    def _flush(self) -> None:
        try:
            while self.outbox:
                self.sock.send(self.outbox[0])
                self.outbox.popleft()
        except BlockingIOError:
            pass
        self.watch()

    def _read(self) -> None:
        descriptors = array.array("i")
        room = socket.CMSG_SPACE(descriptors.itemsize)
        packet, ancillary, _, _ = self.sock.recvmsg(LONGEST_PACKET, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data)
        try:
            if not packet:
                self.lose("")
                return
            self._execute(parse_request(packet), descriptors)
        except (RefusedError, ValueError) as error:
            self.send({"id": None, "error": str(error)})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _execute(self, request: Fields, descriptors: array.array[int]) -> None:
        op = request.text("op")
        if op == "join":
            self._join(request)
        elif self.rank < 0:
            raise RefusedError(f"{op}: join first")
        elif op == "memory":
            self._map(request, descriptors)
        elif op == "exchange":
            self._exchange(request)
        elif op == "overdue":
            self._overdue(request)
        elif op == "forget":
            self.memories.pop(request.integer("memory", 0, 1 << 62), None)
        elif op == "leave":
            self._leave()
        else:
            raise RefusedError(f"op: does not know {op!r}")

    def _join(self, request: Fields) -> None:
        rank = request.integer("rank", 0, 1 << 32)
        if rank in self.port.ranks:
            raise RefusedError(f"rank {rank} has joined already")
        self.rank = rank
        self.port.ranks[rank] = self
        self.port.send_event({"event": "rank_joined", "rank": rank})

    def _map(self, request: Fields, descriptors: array.array[int]) -> None:
        number = request.integer("memory", 0, 1 << 62)
        if len(descriptors) != 1:
            raise RefusedError(f"memory {number} needs one descriptor")
        if not fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & SEALS:
            raise RefusedError(f"memory {number} could shrink; seal it with F_SEAL_SHRINK")
        size = os.fstat(descriptors[0]).st_size
        self.memories[number] = memoryview(mmap.mmap(descriptors[0], size))

    def _exchange(self, request: Fields) -> None:
        number = request.integer("id", 0, 1 << 62)
        if number in self.asked:
            raise RefusedError(f"id: request {number} has not ended")
        key = exchange_key(request)
        sends, receives = request.integers("sends"), request.integers("receives")
        if self.rank not in key.group or not len(key.group) == len(sends) == len(receives):
            raise RefusedError(f"{key}: rank {self.rank} asks for blocks of other ranks")
        blocks_out = blocks("sends", sends, self._place(request, "input"))
        blocks_in = blocks("receives", receives, self._place(request, "output"))
        has_tokens = request.values.get("tokens") is not None
        tokens = request.integers("tokens") if has_tokens else None
        asked_ns = NOW()
        event = {
            "event": "exchange", "rank": self.rank, **key._asdict(), "sends": sends,
            "receives": receives, "dtype": request.text("dtype"), "tokens": tokens,
            "asked_ns": asked_ns,
        }  # fmt: skip
        ask = Ask(blocks_out, blocks_in, partial(self._ended, number))
        self.port.exchanges.ask(key, key.group.index(self.rank), ask)
        self.asked[number] = event, key
        self.port.send_event(event)

    def _place(self, request: Fields, field: str) -> memoryview:
        place = request.integers(field)
        memory = self.memories.get(place[0]) if len(place) == 3 else None
        if memory is None or not place[1] <= place[2] <= len(memory):
            raise RefusedError(f"{field}: {place} is not a place in memory that was handed over")
        return memory[place[1] : place[2]]

    def _overdue(self, request: Fields) -> None:
        number = request.integer("id", 0, 1 << 62)
        seconds = request.number("seconds")
        if number in self.asked:
            key = self.asked[number][1]._asdict()
            self.port.send_event({"event": "overdue", "rank": self.rank, **key, "seconds": seconds})

    def _ended(self, number: int, error: str) -> None:
        del self.asked[number]
        self.send({"id": number, "error": error})

    def _leave(self) -> None:
        self.close()
        self.port.send_event({"event": "rank_left", "rank": self.rank})
