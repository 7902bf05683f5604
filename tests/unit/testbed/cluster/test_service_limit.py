"""The machine service keeps places for those who know its secret."""

import asyncio

from moefabric.core.machines import Machine
from moefabric.testbed.cluster.connection import Connection
from moefabric.testbed.cluster.service import MachineService

MOST_STRANGERS = 64


async def is_hung_up(reader: asyncio.StreamReader) -> bool:
    """Return whether the service has closed a connection behind its challenge."""
    try:
        async with asyncio.timeout(0.02):
            await reader.readline()
            return await reader.read(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_silent_connections_keep_no_head_out_and_are_limited() -> None:
    async def flooded() -> tuple[str, int]:
        service = MachineService("secret")
        async with await asyncio.start_server(service.answer, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
            head = await Connection.to(Machine("m1", "127.0.0.1", port, "secret"))
            head.write({"do": "nothing"})
            reply = await head.read()
            kept = [reader for reader, _ in silent if not await is_hung_up(reader)]
            for writer in (head.writer, *(writer for _, writer in silent)):
                writer.close()
            return str(reply["error"]), len(kept)

    error, kept = asyncio.run(flooded())
    assert "is not one of part, stream, program" in error
    assert kept <= MOST_STRANGERS
