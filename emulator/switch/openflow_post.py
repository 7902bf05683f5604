"""A switch's place in an agent: its controller, which it dials, and the guests at its own door."""

import errno
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from emulator.switch.openflow import NEVER
from emulator.switch.openflow_connection import Connection
from emulator.switch.openflow_switch import Switch
from moefabric.errors import FabricError

FIRST_RETRY_NS: Final = 50_000_000
LAST_RETRY_NS: Final = 1_000_000_000
CONNECT_NS: Final = 3_000_000_000
EXPIRY_NS: Final = 500_000_000
"""How often time-outs are looked at; an entry goes so much late at most."""
GUESTS: Final = 16
"""The most that a door lets in at once."""
Address = tuple[str, int]


@dataclass(eq=False)
class Post:
    """A switch, and where it is with those it speaks with."""

    name: str
    switch: Switch
    controller: Address | None = None
    dialling: socket.socket | None = None
    """On its way to the controller, until it is there."""
    dial_ns: int = NEVER
    """When to dial, or to give up dialling."""
    retry_ns: int = FIRST_RETRY_NS
    line: Connection | None = None
    """To the controller."""
    guests: list[Connection] = field(default_factory=list)
    expiry_ns: int = NEVER

    @property
    def connections(self) -> list[Connection]:
        return [self.line, *self.guests] if self.line else [*self.guests]

    @property
    def due_ns(self) -> int:
        """When it next wants attention if nothing happens."""
        dial_ns = NEVER if self.line else self.dial_ns
        return min(dial_ns, self.expiry_ns, *(each.conversation.due_ns for each in self.connections))

    def await_time_outs(self, now_ns: int) -> None:
        """Be called again for the time-outs of entries, if there are any."""
        if not self.switch.times_out:
            self.expiry_ns = NEVER
        elif self.expiry_ns == NEVER:
            self.expiry_ns = now_ns + EXPIRY_NS


def dialled(controller: Address) -> socket.socket:
    """A socket on its way there. OSError where there is no way."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    status = sock.connect_ex(controller)
    if status not in {0, errno.EINPROGRESS}:
        sock.close()
        raise OSError(status, os.strerror(status))
    return sock


def door(path: Path) -> socket.socket:
    """A Unix socket at which this user's programs, and root's, find a switch; one that is left over gives way. FabricError where it can't be had."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        os.fchmod(sock.fileno(), 0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_socket():
            path.unlink()
        sock.bind(str(path))
        sock.listen()
    except OSError as fault:
        sock.close()
        raise FabricError(f"{path}: no socket for OpenFlow tools: {fault.strerror or fault}") from fault
    return sock


def closed(sock: socket.socket) -> None:
    """Shut a door, and take its socket away."""
    path = Path(sock.getsockname())
    sock.close()
    with suppress(FileNotFoundError):
        path.unlink()
