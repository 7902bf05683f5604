"""What a machine service reads: its greeting, requests of a head, frames of streams; and hand-off
facts, replies and error output of agents on real hosts."""

import asyncio
import socket
from contextlib import suppress
from typing import Any, cast
from unittest import mock

from moefabric.agents.remote import ssh_errors
from moefabric.core.errors import FabricError
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.fd_handoff import receive_handoff
from moefabric.testbed.cluster import service
from moefabric.testbed.cluster.connection import Connection
from moefabric.testbed.cluster.service import MachineService
from tests.support.fuzzing import FuzzTarget

_LOOP = asyncio.new_event_loop()


class Writer:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.written, self.closed = bytearray(), False

    def write(self, data: bytes) -> None:
        """Keep bytes."""
        self.written += data

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the address of the peer."""
        return ("198.18.0.9", 40000) if name == "peername" else default

    async def drain(self) -> None:
        """Do nothing: there is room."""

    def close(self) -> None:
        """Note that the connection is closed."""
        self.closed = True


def _connection(data: bytes) -> Connection:
    """Return a connection by which the input has come, and then its end."""
    reader = asyncio.StreamReader(loop=_LOOP)
    reader.feed_data(data)
    reader.feed_eof()
    return Connection(reader, cast(asyncio.StreamWriter, Writer()))


def read_greeting(data: bytes) -> None:
    """Let a client without the secret send the input: it gets no further than the challenge."""
    client = _connection(data)
    _LOOP.run_until_complete(MachineService("secret").answer(client.reader, client.writer))
    writer = cast(Writer, client.writer)
    assert writer.closed
    assert writer.written.count(b"\n") == 1


async def _proved(_connection: Connection, _secret: str) -> bool:
    return True


def _no_part(*_: object) -> None:
    raise FabricError("no part here")


async def _no_program(message: dict[str, Any], _connection: Connection) -> None:
    raise FabricError(f"no program {message['command']} here")


def read_requests(data: bytes) -> None:
    """Let a client that has proved to know the secret send the input."""
    client = _connection(data)
    with (
        mock.patch.object(Connection, "authenticate", _proved),
        mock.patch.object(lifecycle, "up_part", _no_part),
        mock.patch.object(service, "run_program", _no_program),
    ):
        _LOOP.run_until_complete(MachineService("secret").answer(client.reader, client.writer))
    assert cast(Writer, client.writer).closed


def read_frames(data: bytes) -> None:
    """Read the input as the frames of a program's streams."""

    async def read() -> None:
        connection = _connection(data)
        with suppress(EOFError, ValueError):  # what the reader documents
            while True:
                await connection.read_frame()

    _LOOP.run_until_complete(read())


def read_facts(data: bytes) -> None:
    """Receive the input as the facts of a hand-off, and describe the switch by them."""
    ours, fabric = socket.socketpair()
    with ours, fabric:
        fabric.sendall(data)
        fabric.shutdown(socket.SHUT_WR)
        try:
            facts, descriptors = receive_handoff(ours)
        except FabricError:
            return
        assert not descriptors
        with suppress(KeyError, TypeError, ValueError):  # what `from_json` documents
            DeviceSpec.from_json(facts)


def read_error_output(data: bytes) -> None:
    """Explain the input as the error output of an SSH client."""
    text = data.decode(errors="replace")
    there = ssh_errors.Destination("lab", "192.0.2.1", 22, "root")
    for status in (None, 255, 127, 1):
        assert ssh_errors.failure(there, "python3", status, text)


TARGETS = (
    FuzzTarget("machine-greeting", read_greeting),
    FuzzTarget("machine-requests", read_requests),
    FuzzTarget("machine-frames", read_frames),
    FuzzTarget("ocs-handoff", read_facts),
    FuzzTarget("ssh-errors", read_error_output),
)
