"""Collectives: each begins at its instant and ends with its last transfer or at its deadline."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from moefabric.agents.engine.connections import Connections
from moefabric.agents.engine.exchanges import Exchange, Exchanges, part
from moefabric.agents.engine.requests import Fields, RefusedError
from moefabric.agents.engine.resources import Resources
from moefabric.agents.engine.transfers import Receive, Send, TransferKey
from moefabric.runtime.event_loop import NOW, Timer

log = logging.getLogger(__name__)


class Collective:
    """The transfers of one server that start together.

    Args:
        request: The fields `start_ns`, `deadline_ns`, `sends` and `receives`.
        exchange: The exchange of ranks whose bytes it carries; None if it carries patterns.

    Attributes:
        unfinished: Number of transfers that have not ended.
        began_ns: When the collective began; 0 before.

    Raises:
        RefusedError: if a field is wrong.
    """

    def __init__(
        self,
        number: int,
        request: Fields,
        send_event: Callable[[dict[str, Any]], object],
        exchange: Exchange | None,
    ) -> None:
        self.number, self.send_event = number, send_event
        self.is_timed = request.values.get("start_ns") is not None
        self.start_ns = request.integer("start_ns", 0, 1 << 63) if self.is_timed else NOW()
        self.deadline_ns = request.integer("deadline_ns", 0, 1 << 63)
        self.sends: list[Send] = []
        for key, size, fields in _transfers(number, request, "sends"):
            content = None if exchange is None else part(exchange.owed(key.peer), size, fields)
            self.sends.append(Send(key, size, fields.rate(), content))
        self.receives: list[Receive] = []
        for key, size, fields in _transfers(number, request, "receives"):
            receive = Receive(key, size)
            if exchange is not None:
                exchange.expect(receive, fields)
            self.receives.append(receive)
        self.timers: list[Timer] = []
        self.unfinished = 0
        self.began_ns = 0


def _transfers(
    collective: int, request: Fields, field: str
) -> Iterator[tuple[TransferKey, int, Fields]]:
    """Yield the key, size and fields of each transfer in a list of the request."""
    counts: Counter[tuple[str, str]] = Counter()
    for fields in request.objects(field):
        peer, path = fields.text("peer"), fields.text("path")
        key = TransferKey(collective, peer, path, counts[peer, path])
        counts[peer, path] += 1
        yield key, fields.integer("bytes", 0, 1 << 62), fields


class Collectives:
    """The collectives of one server that have not ended."""

    def __init__(
        self, resources: Resources, connections: Connections, exchanges: Exchanges
    ) -> None:
        self.resources, self.connections, self.exchanges = resources, connections, exchanges
        self.armed: dict[int, Collective] = {}

    def arm(self, request: Fields, send_event: Callable[[dict[str, Any]], object]) -> int:
        """Schedule a collective to begin at its instant; return its number."""
        number = request.integer("collective", 0, (1 << 64) - 1)
        if number in self.armed:
            raise RefusedError(f"collective {number} is armed already")
        collective = Collective(number, request, send_event, self.exchanges.carried(request))
        arrivals, call_at = self.resources.arrivals, self.resources.loop.call_at
        arrivals.ended.pop(number, None)  # the number may have been used before
        collective.receives = [arrivals.expect(receive) for receive in collective.receives]
        for transfer in (*collective.sends, *collective.receives):
            transfer.on_end = partial(self._transfer_ended, collective)
            collective.unfinished += transfer.ok is None
        begin, expire = partial(self._begin, collective), partial(self.abandon, number)
        collective.timers = [
            call_at(collective.start_ns, begin, precise=collective.is_timed),
            call_at(collective.deadline_ns, expire),
        ]
        self.armed[number] = collective
        for send in collective.sends if collective.is_timed else ():
            self.connections.prepare(send, collective.start_ns)
        return number

    def close(self) -> None:
        """End all collectives; their unfinished transfers fail."""
        for number in list(self.armed):
            self.abandon(number)

    def abandon(self, number: int) -> None:
        """End a collective, if it is armed; its unfinished transfers fail."""
        if number not in self.armed:
            return
        collective = self.armed[number]
        log.warning(
            "abandoned with unfinished transfers",
            extra={"collective": number, "server": self.resources.name},
        )
        collective.began_ns = collective.began_ns or NOW()
        collective.unfinished += 1  # keeps the collective from ending before the loops below
        for send in collective.sends:
            if send.ok is None:
                send.end(send.deadline_error())
                self.connections.abandon(send)
        for receive in collective.receives:
            if receive.ok is None:
                connected = (receive.peer, receive.path) in self.resources.incoming
                receive.end(receive.deadline_error(connected=connected))
        self._transfer_ended(collective)

    def _begin(self, collective: Collective) -> None:
        collective.began_ns = NOW()
        collective.unfinished += 1  # keeps the collective from ending before all sends are queued
        log.debug("begins", extra={"collective": collective.number})
        for send in collective.sends:
            self.connections.send(send)
        os.sched_yield()  # other agents on this core begin before this one fills its buffers
        self._transfer_ended(collective)

    def _transfer_ended(self, collective: Collective) -> None:
        """Count a transfer that has ended; the last one ends the collective."""
        collective.unfinished -= 1
        if collective.unfinished or not collective.began_ns:
            return
        del self.armed[collective.number]
        for timer in collective.timers:
            timer.cancel()
        log.debug("ends", extra={"collective": collective.number})
        self.resources.arrivals.collective_ended(collective.number, collective.receives)
        event = {"event": "done", "collective": collective.number}
        sends = [send.to_json() for send in collective.sends]
        receives = [receive.to_json() for receive in collective.receives]
        collective.send_event({**event, "sends": sends, "receives": receives})
