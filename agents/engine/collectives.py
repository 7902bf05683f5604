"""Collectives: armed, begun at their instant, ended by their last transfer or their deadline."""

from __future__ import annotations

from agents.engine.arrivals import Arrivals
from agents.engine.clock import NOW
from agents.engine.collective import Collective
from agents.engine.connections import Connections
from agents.engine.errors import RefusedError
from agents.engine.loop import Loop, Timer


class Collectives:
    """The collectives of one server that have not ended."""

    def __init__(self, loop: Loop, connections: Connections, arrivals: Arrivals) -> None:
        self.loop, self.connections, self.arrivals = loop, connections, arrivals
        self.armed: dict[int, tuple[Collective, list[Timer]]] = {}

    def refuse_armed(self, number: int) -> None:
        """RefusedError if a collective of that number has not ended."""
        if number in self.armed:
            raise RefusedError(f"collective {number} is armed already")

    def arm(self, made: Collective) -> None:
        """Let it start at its instant, by itself."""
        self.arrivals.armed(made.number)
        made.receives = [self.arrivals.expect(receive) for receive in made.receives]
        for transfer in (*made.sends, *made.receives):
            made.own(transfer)
        made.over = self._over
        precise = made.start_ns is not None
        start_ns = NOW() if made.start_ns is None else made.start_ns
        begin = self.loop.at(start_ns, lambda: self._begin(made), precise=precise)
        self.armed[made.number] = made, [begin, self.loop.at(made.deadline_ns, lambda: self._deadline(made))]

    def close(self) -> None:
        """End all as they are."""
        for made, _ in list(self.armed.values()):
            self._deadline(made)

    def abandon(self, number: int) -> bool:
        """End one as it is; whether it was armed."""
        if number not in self.armed:
            return False
        self._deadline(self.armed[number][0])
        return True

    def _begin(self, made: Collective) -> None:
        made.began_ns = NOW()
        made.left += 1  # it can't be over before all its sends were queued
        for send in made.sends:
            connection = self.connections.outgoing.get((send.peer, send.path))
            if connection is None:
                send.end(f"no connection to {send.peer} by {send.path}; connect first")
            else:
                connection.send(send)
        made.one_less()

    def _deadline(self, made: Collective) -> None:
        if made.number not in self.armed:
            return
        made.began_ns = made.began_ns or NOW()
        made.left += 1
        for send in made.sends:
            if send.ok is None:
                why, connection = send.missing(), self.connections.outgoing.get((send.peer, send.path))
                send.end(why)
                if connection is not None:
                    connection.abandon(send)
        for receive in made.receives:
            if receive.ok is None:
                connected = (receive.peer, receive.path) in self.connections.incoming
                receive.end(receive.missing(connected=connected))
        made.one_less()

    def _over(self, made: Collective) -> None:
        _, timers = self.armed.pop(made.number)
        for timer in timers:
            timer.cancelled = True
        self.arrivals.over(made.number, made.receives)
        made.tell(made.told())
