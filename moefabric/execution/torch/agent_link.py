"""The link of a rank to the agent of its server: shared memory, requests and their replies.

`moefabric.agents.engine.rank_port` describes the packets.
"""

import atexit
import errno
import fcntl
import json
import mmap
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

LONGEST_PACKET: Final = 1 << 20
SMALLEST_MEMORY: Final = 1 << 16
LEAVE_S: Final = 2.0
AGENT_VARIABLE: Final = "MOEFABRIC_AGENT"
"""Environment variable of a rank: the socket of ranks of its server's agent."""

Ended = Callable[[str], None]
"""Callback at the end of an exchange, with the error or an empty text."""


class SharedMemory:
    """Memory that a rank shares with its agent.

    Args:
        number: Its number on the link.
        size: Its size in bytes.

    Attributes:
        fd: Descriptor of the memory, until the agent has it.
        bytes: The memory.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.fd = os.memfd_create("moefabric-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.bytes = mmap.mmap(self.fd, size)


@dataclass(frozen=True)
class ExchangeRequest:
    """An exchange that a rank asks for.

    Attributes:
        name: Name of the process group.
        group: Global ranks of the group, in its order.
        number: Counts the exchanges of the group.
        sends: Bytes for each member.
        receives: Bytes from each member.
        dtype: Type of the elements.
        tokens: How many tokens the gate counted for each expert; None if unknown.
    """

    name: str
    group: Sequence[int]
    number: int
    sends: Sequence[int]
    receives: Sequence[int]
    dtype: str
    tokens: Sequence[int] | None = None


class AgentLink:
    """A rank's connection to its agent. A thread of its own calls back when exchanges end.

    Args:
        path: The agent's socket of ranks.
        rank: The global rank.

    Raises:
        OSError: if nobody listens there.
    """

    def __init__(self, path: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # unix(7): a name in the network namespace, written with @, begins with a zero byte.
            self._socket.connect(f"\0{path[1:]}" if path.startswith("@") else path)
        except OSError:
            self._socket.close()
            raise
        self._lock = threading.Lock()
        self._pending: dict[int, Ended] = {}
        self._free: list[SharedMemory] = []
        self._last = 0
        self._gone = ""
        self._send({"op": "join", "rank": rank})
        self._reader = threading.Thread(target=self._read, name="moefabric", daemon=True)
        self._reader.start()

    def memory(self, size: int) -> SharedMemory:
        """Return shared memory of at least this size; `give_back` makes it free again."""
        with self._lock:
            fitting = [memory for memory in self._free if size <= memory.size <= 4 * size]
            if fitting:
                memory = min(fitting, key=lambda memory: memory.size)
                self._free.remove(memory)
                return memory
            self._last += 1
            number = self._last
        memory = SharedMemory(number, max(SMALLEST_MEMORY, 1 << max(0, size - 1).bit_length()))
        self._send({"op": "memory", "memory": memory.number}, [memory.fd])
        os.close(memory.fd)  # the agent has mapped it
        return memory

    def give_back(self, memory: SharedMemory) -> None:
        """Keep memory for the next exchange."""
        with self._lock:
            self._free.append(memory)

    def drop(self, memory: SharedMemory) -> None:
        """Abandon memory to which a failed exchange may still write."""
        self._send({"op": "forget", "memory": memory.number})

    def ask(
        self, request: ExchangeRequest, memory: SharedMemory, boundary: int, ended: Ended
    ) -> int:
        """Ask for an exchange; return its number on this link.

        Args:
            memory: Memory with the bytes to send, and room for those to receive.
            boundary: Where the room begins.
            ended: Is called at the end, by another thread.
        """
        with self._lock:
            self._last += 1
            number = self._last
            self._pending[number] = ended
        sent = [memory.number, 0, sum(request.sends)]
        received = [memory.number, boundary, boundary + sum(request.receives)]
        fields = vars(request) | {"group": [*request.group], "input": sent, "output": received}
        self._send({"op": "exchange", "id": number, **fields})
        if self._gone:
            self.end(number, self._gone)
        return number

    def overdue(self, number: int, seconds: float) -> None:
        """Tell the agent that an exchange takes longer than the rank waits."""
        self._send({"op": "overdue", "id": number, "seconds": seconds})

    def close(self) -> None:
        """Leave, and close the connection."""
        self._send({"op": "leave"})  # the agent closes its end, which ends the thread
        self._reader.join(LEAVE_S)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def _send(self, packet: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a packet; the reader reports an agent that is gone.

        Raises:
            RuntimeError: if the packet is larger than the kernel's `net.core.wmem_max` allows.
        """
        data = json.dumps(packet).encode()
        try:
            if descriptors:
                socket.send_fds(self._socket, [data], list(descriptors))
            else:
                self._socket.send(data)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                raise RuntimeError(
                    f"a request of {len(data)} bytes to the agent is too large: "
                    "raise net.core.wmem_max, or use smaller groups"
                ) from error

    def _read(self) -> None:
        while True:
            try:
                packet = self._socket.recv(LONGEST_PACKET)
            except OSError:
                packet = b""
            if not packet:
                break
            reply = json.loads(packet)
            if reply["id"] is None:
                self._fail(f"the agent refused a request: {reply['error']}")
            else:
                self.end(reply["id"], reply["error"])
        self._fail("the agent of this server has ended")

    def end(self, number: int, error: str) -> None:
        """End an exchange here, with an error or an empty text, unless it has ended."""
        with self._lock:
            ended = self._pending.pop(number, None)
        if ended is not None:
            ended(error)

    def _fail(self, why: str) -> None:
        """End all exchanges, and those that are asked for from now on."""
        self._gone = self._gone or why
        with self._lock:
            numbers = list(self._pending)
        for number in numbers:
            self.end(number, self._gone)


# The link of this process to its agent, which all its process groups use.
_lock = threading.Lock()
_link: AgentLink | None = None
_users = 0


def open_link(rank: int) -> AgentLink | None:
    """Return the link, opened for the first group; None if the environment names no agent.

    Args:
        rank: The global rank of this process.

    Raises:
        RuntimeError: if the agent doesn't answer.
    """
    global _link, _users  # noqa: PLW0603 - one link a process
    path = os.environ.get(AGENT_VARIABLE)
    if not path:
        return None
    with _lock:
        if _link is None:
            try:
                _link = AgentLink(path, rank)
            except OSError as error:
                raise RuntimeError(
                    f"{AGENT_VARIABLE}: no agent answers at {path}: {error.strerror}; start this "
                    "program by `moefabric torchrun`, or unset the variable to use gloo"
                ) from error
        _users += 1
        return _link


def close_link() -> None:
    """Leave the agent when the last group is shut down."""
    global _link, _users  # noqa: PLW0603 - one link a process
    with _lock:
        _users -= 1
        link, _link = (_link, None) if not _users else (None, _link)
    if link is not None:
        link.close()


@atexit.register
def _leave_at_exit() -> None:
    """Leave, unless the program ends by an exception: its rank then counts as lost."""
    if _link is not None and not hasattr(sys, "last_value"):
        _link.close()
