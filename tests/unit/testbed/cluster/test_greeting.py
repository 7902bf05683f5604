"""Connections to machine services: both ends prove that they know the secret."""

import asyncio
from typing import Any

import pytest

from moefabric.core.errors import FabricError
from moefabric.core.machines import Machine
from moefabric.testbed.cluster.connection import Connection


async def greeted(theirs: str, ours: str) -> dict[str, Any]:
    """Return the message of a service to a client, each with a secret."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        if await connection.authenticate(theirs):
            connection.write({"welcome": True})
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        connection = await Connection.to(Machine("m1", "127.0.0.1", port, ours))
        message = await connection.read()
        connection.writer.close()
        return message


def test_client_with_the_secret_is_authenticated() -> None:
    assert asyncio.run(greeted("a", "a")) == {"welcome": True}


def test_client_without_the_secret_is_refused_and_gets_no_proof() -> None:
    with pytest.raises(FabricError, match=r"machine m1 .*: it has another secret"):
        asyncio.run(greeted("a", "b"))


def test_machine_without_a_service_is_named() -> None:
    with pytest.raises(FabricError, match=r"machine m1 \(127\.0\.0\.1:1\)"):
        asyncio.run(Connection.to(Machine("m1", "127.0.0.1", 1, "a")))
