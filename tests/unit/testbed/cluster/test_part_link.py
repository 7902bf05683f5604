"""The head's connection to a part on another machine."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from moefabric.testbed.cluster.connection import Connection
from moefabric.testbed.cluster.head import PartLink

AHEAD_NS = 5_000_000_000
Replies = Callable[[dict[str, Any]], dict[str, Any] | None]


def with_link(replies: Replies, use: Callable[[PartLink], Awaitable[None]]) -> None:
    """Connect a link to a part that replies so, or ends the connection for None, and use it."""

    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        with suppress(EOFError, OSError):
            while (reply := replies(await connection.read())) is not None:
                if reply:
                    connection.write(reply)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    async def run() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1") as server:
            streams = await asyncio.open_connection(*server.sockets[0].getsockname())
            link = PartLink(Connection(*streams), lease_s=0.2)
            await asyncio.wait_for(use(link), 30)
            link.lose("the test is over")
            await ended.wait()

    asyncio.run(run())


def heartbeat(**changes: Any) -> dict[str, Any]:
    return {"now_ns": 0, "runs": True, "exists": True, **changes}


def test_replies_have_the_order_of_requests() -> None:
    async def use(link: PartLink) -> None:
        requests = [link.ask({"number": number}) for number in range(20)]
        assert [reply["number"] for reply in await asyncio.gather(*requests)] == list(range(20))

    with_link(lambda message: message, use)


def test_clock_has_a_bound() -> None:
    async def use(link: PartLink) -> None:
        watch = asyncio.create_task(link.watch())
        while not link.clock:
            await asyncio.sleep(0.01)
        assert abs(link.clock["offset_ns"] - AHEAD_NS) <= link.clock["uncertainty_ns"]
        watch.cancel()

    with_link(lambda _: heartbeat(now_ns=time.monotonic_ns() + AHEAD_NS), use)


def test_silent_part_is_lost_after_the_lease_and_requests_end() -> None:
    async def use(link: PartLink) -> None:
        assert await link.ask({"do": "ping"}, 0.3) == {"error": "no answer within 0.3 s"}
        await link.watch()
        assert link.lost == "silent for 0.2 s"
        assert await link.ask({"do": "ping"}) == {"error": "silent for 0.2 s"}

    with_link(lambda _: {}, use)


def test_part_whose_connection_ends_is_lost() -> None:
    async def use(link: PartLink) -> None:
        assert await link.ask({"do": "ping"}) == {"error": "its connection has ended"}
        assert not link.removed.is_set()

    with_link(lambda _: None, use)


def test_crashed_part_is_lost_and_part_without_remains_was_removed() -> None:
    def used(*, removed: bool) -> Callable[[PartLink], Awaitable[None]]:
        async def use(link: PartLink) -> None:
            await link.watch()
            assert link.lost == "its part has ended"
            assert link.removed.is_set() is removed

        return use

    with_link(lambda _: heartbeat(runs=False), used(removed=False))
    with_link(lambda _: heartbeat(runs=False, exists=False), used(removed=True))
