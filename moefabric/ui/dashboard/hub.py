"""Distribution of a fabric's changes to the pages that watch it.

One thread reads all fabrics that somebody watches, once for all pages. Everything else happens in
the event loop of the server.
"""

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

from moefabric.core.errors import MoefabricError
from moefabric.ui.dashboard.fabric_source import RunningFabrics
from moefabric.ui.dashboard.monitor import FabricMonitor

MOST_CLIENTS: Final = 32
"""Number of pages that may watch at once."""
QUEUE: Final = 64
"""Messages that wait for one page; a page that is slower is dropped."""
_KEEP_ALIVE_S: Final = 10.0
_SHORTEST_S: Final = 0.05
_LARGE: Final = 32
"""Number of servers above which a fabric is read half as often."""


def message(topic: str, value: object) -> bytes:
    """Return a server-sent event (HTML Living Standard, section 9.2)."""
    data = json.dumps(value, separators=(",", ":"))
    return f"event: {topic}\ndata: {data}\n\n".encode()


class TooManyClientsError(MoefabricError):
    """The dashboard's limit of pages is reached."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_CLIENTS} pages watch already: close one of them")


class Subscription:
    """Queue of messages to a page."""

    def __init__(self, fabric: str) -> None:
        self.fabric = fabric
        self.is_slow = False
        self._queue = asyncio.Queue[bytes | None](QUEUE)

    def put(self, text: bytes | None) -> None:
        """Queue a message, or the end of the stream. A full queue ends it, too."""
        try:
            self._queue.put_nowait(text)
        except asyncio.QueueFull:
            self.is_slow = True

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield messages, and comments while there are none, until the end."""
        while not self.is_slow:
            try:
                text = await asyncio.wait_for(self._queue.get(), _KEEP_ALIVE_S)
            except TimeoutError:
                yield b": no change\n\n"
                continue
            if text is None:
                return
            yield text


class Hub:
    """Reads fabrics while pages watch them.

    Args:
        sources: The fabrics that run.
        period_s: Seconds between two readings of a small fabric.
    """

    def __init__(self, sources: RunningFabrics, period_s: float = 0.5) -> None:
        self.sources, self._period_s = sources, period_s
        self._names: list[str] = []
        self._names_read: list[str] = []
        self._state: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        self._subscriptions = set[Subscription]()
        self._watched: frozenset[str] = frozenset()
        self._monitors: dict[str, FabricMonitor] = {}
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard-reader", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the reader; called in the server's event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End all streams and the reader, from any thread; a reading under way ends by itself."""
        self._stopped.set()
        self._wake.set()
        self._call(self._end_streams)

    def wake(self) -> None:
        """Read at once, such as after a command."""
        self._wake.set()

    # --- in the event loop -----------------------------------------------------------------------

    def subscribe(self, fabric: str) -> Subscription:
        """Return a stream of messages about a fabric, which begins with its whole state.

        Args:
            fabric: Name of the fabric; empty for the names of the running fabrics only.

        Raises:
            TooManyClientsError: If as many pages as may watch do so.
        """
        if len(self._subscriptions) >= MOST_CLIENTS:
            raise TooManyClientsError
        subscription = Subscription(fabric)
        subscription.put(message("fabrics", self._names))
        for text in self._state[fabric].values() if fabric in self._state else ():
            subscription.put(text)
        self._subscriptions.add(subscription)
        self._set_watched()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Forget a stream."""
        self._subscriptions.discard(subscription)
        self._set_watched()

    def _end_streams(self) -> None:
        for subscription in self._subscriptions:
            subscription.put(None)

    def _set_watched(self) -> None:
        self._watched = frozenset(s.fabric for s in self._subscriptions)
        self.wake()

    def _publish(self, fabric: str, live: list[bytes], state: dict[str, bytes]) -> None:
        self._state[fabric].update(state)
        for subscription in self._subscriptions:
            if subscription.fabric == fabric:
                for text in live:
                    subscription.put(text)

    def _publish_names(self, names: list[str]) -> None:
        for gone in set(self._state) - set(names):
            del self._state[gone]
        self._names = names
        for subscription in self._subscriptions:
            subscription.put(message("fabrics", names))

    # --- in the reader's thread ------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.clear()  # before the check, so that the wake of `stop` is not lost
            if self._stopped.is_set():
                break
            self._wake.wait(self.read())
            self._stopped.wait(_SHORTEST_S)  # many wakes at once are one
        for monitor in self._monitors.values():
            monitor.source.close()

    def read(self) -> float | None:
        """Read each fabric that pages watch, once; return the seconds until the next time.

        Returns:
            None if no page watches: the next one wakes the reader.
        """
        if not (watched := self._watched):
            return None
        names = self._read_names()
        for name in watched.intersection(names):
            self._read(name)
        large = any(len(m.source.fabric.servers) > _LARGE for m in self._monitors.values())
        return self._period_s * (2 if large else 1)

    def _read_names(self) -> list[str]:
        names = self.sources.names()
        if names != self._names_read:
            self._names_read = names
            for gone in set(self._monitors) - set(names):
                self._monitors.pop(gone).source.close()
            self._call(self._publish_names, names)
        return names

    def _read(self, name: str) -> None:
        try:
            if name not in self._monitors:
                self._monitors[name] = FabricMonitor(self.sources.open(name))
            changes = self._monitors[name].poll()
        except (MoefabricError, OSError, KeyError):  # the fabric ends meanwhile, or has just begun
            if monitor := self._monitors.pop(name, None):
                monitor.source.close()
            return
        state = {topic: message(topic, value) for topic, value in changes.state.items()}
        live = [
            state[topic] if changes.state.get(topic) is value else message(topic, value)
            for topic, value in changes.live.items()
        ]
        if state:
            self._call(self._publish, name, live, state)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: the server ends
            self._loop.call_soon_threadsafe(function, *arguments)
