import asyncio
import threading
from collections.abc import Awaitable, Callable

from moefabric.ui.dashboard.hub import QUEUE, Hub, Subscription, message
from tests.support.dashboard_sources import MemorySource, MemorySources, memory_fabric


def in_loop(scenario: Callable[[Hub, MemorySource], Awaitable[None]]) -> None:
    """Run a scenario with a hub whose readings it orders itself."""

    async def run() -> None:
        source = MemorySource(memory_fabric("lab", 4))
        hub = Hub(MemorySources(source))
        hub._loop = asyncio.get_running_loop()
        await scenario(hub, source)

    asyncio.run(run())


def topics(subscription: Subscription) -> list[str]:
    texts = [subscription._queue.get_nowait() for _ in range(subscription._queue.qsize())]
    return [text.split()[1].decode() for text in texts if text]


def test_one_reading_serves_all_pages() -> None:
    async def scenario(hub: Hub, source: MemorySource) -> None:
        pages = [hub.subscribe("lab") for _ in range(3)]
        hub.read()
        await asyncio.sleep(0)  # the loop distributes the messages
        assert source.readings == 1
        first, *others = map(topics, pages)
        assert {"fabric", "circuits", "hardware"} <= set(first)
        assert others == [first, first]

    in_loop(scenario)


def test_nothing_is_read_while_no_page_watches() -> None:
    async def scenario(hub: Hub, source: MemorySource) -> None:
        assert hub.read() is None
        page = hub.subscribe("lab")
        assert hub.read() == 0.5
        hub.unsubscribe(page)
        assert hub.read() is None
        assert source.readings == 1

    in_loop(scenario)


def test_a_page_that_connects_later_receives_the_whole_state() -> None:
    async def scenario(hub: Hub, source: MemorySource) -> None:
        hub.subscribe("lab")
        hub.read()
        await asyncio.sleep(0)
        assert {"fabric", "circuits", "failures"} <= set(topics(hub.subscribe("lab")))

    in_loop(scenario)


def test_large_fabrics_are_read_half_as_often() -> None:
    async def scenario(hub: Hub, _source: MemorySource) -> None:
        hub.sources = MemorySources(MemorySource(memory_fabric("lab", 64)))
        hub.subscribe("lab")
        assert hub.read() == 1.0

    in_loop(scenario)


def test_a_page_that_takes_nothing_is_dropped_and_disturbs_no_other() -> None:
    async def scenario(hub: Hub, _source: MemorySource) -> None:
        slow, quick = hub.subscribe("lab"), hub.subscribe("lab")
        for _ in range(QUEUE + 1):
            hub._publish("lab", [message("load", {})], {})
            topics(quick)
        assert (slow.is_slow, quick.is_slow) == (True, False)
        assert [text async for text in slow.messages()] == []

    in_loop(scenario)


def test_a_fabric_that_ends_is_forgotten() -> None:
    async def scenario(hub: Hub, source: MemorySource) -> None:
        hub.subscribe("lab")
        hub.read()
        hub.sources = MemorySources()
        hub.read()
        await asyncio.sleep(0)
        assert topics(hub.subscribe("lab")) == ["fabrics"]

    in_loop(scenario)


class StopAtFirstTurn(threading.Event):
    """The event that wakes the reader. The hub is stopped just before its first `clear`."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop, self._is_first = stop, True

    def clear(self) -> None:
        if self._is_first:
            self._is_first = False
            self._stop()
        super().clear()


def test_stop_ends_a_reader_that_is_about_to_wait() -> None:
    async def scenario(hub: Hub, _source: MemorySource) -> None:
        hub._wake = StopAtFirstTurn(hub.stop)
        hub.start()
        await asyncio.to_thread(hub._thread.join, 10)
        assert not hub._thread.is_alive()

    in_loop(scenario)
