"""Changes of a fabric since the last reading: circuits, rates, failures, events and the run."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from moefabric import NS_PER_S, Fabric, MoefabricError, Region, rate_text
from moefabric.api.ocs_events import event_text
from moefabric.core.fabric_description import fabric_description
from moefabric.core.failures import FailureEvent
from moefabric.core.nic import NicKind
from moefabric.core.port_counts import RECEIVED, SENT, PortReading, counted_nics
from moefabric.results.parts import Json
from moefabric.ui.dashboard.fabric_source import FabricSource

EVENTS: Final = 200
"""Number of events that a page which connects receives."""
HISTORY: Final = 240
"""Number of past rates that a page which connects receives."""
_SLOW_S: Final = 5.0
"""Period at which circuits, failures and hardware are read even without an event."""
_PAUSE_S: Final = 4.0
"""Time without a reading after which a mean rate would hide what happened."""
_RUN_PARTS: Final = ("timeline", "demand")
"""Large fields of a run's status, which are topics of their own."""


@dataclass
class Changes:
    """JSON values by topic.

    Attributes:
        live: What pages that are connected receive.
        state: What a page that connects receives; topics without a change are missing.
    """

    live: dict[str, object] = field(default_factory=dict)
    state: dict[str, object] = field(default_factory=dict)


class FabricMonitor:
    """Reads a fabric, and returns only the changes since the last reading.

    Args:
        clock: Seconds of a monotonic clock.
        wall: Seconds since 1970, for people.
    """

    def __init__(
        self,
        source: FabricSource,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.source, self._clock, self._wall = source, clock, wall
        self._last: dict[str, object] = {}
        self._circuits: dict[str, Json] = {}
        self._arrived = deque[Json](maxlen=EVENTS)
        """Events that one thread appends and `poll` takes; a deque needs no lock for that."""
        self._events = deque[Json](maxlen=EVENTS)
        self._history = deque[tuple[float, int | None, int | None]](maxlen=HISTORY)
        """Wall time, and rates by light and by packet switches; None where nobody read them."""
        self._slow_at = -_SLOW_S
        self._failure_version = -1
        self._failure_events = set[FailureEvent]()
        self._moved = set[str]()
        self._rates = PortRates(source.fabric)
        self._topology = topology_view(source.fabric)
        threading.Thread(target=self._follow_events, name="ocs-events", daemon=True).start()

    def poll(self) -> Changes:
        """Read the fabric.

        Raises:
            MoefabricError: If the fabric has ended.
        """
        now, changes = self._clock(), Changes()
        is_slow_turn = now >= self._slow_at + _SLOW_S
        if is_slow_turn:
            self._slow_at = now
        events = [self._arrived.popleft() for _ in range(len(self._arrived))]
        self._put(changes, "fabric", self._topology)
        self._poll_load(now, changes)
        self._poll_circuits(changes, {str(event["ocs"]) for event in events}, every=is_slow_turn)
        events += self._poll_failures(changes, every=is_slow_turn)
        self._poll_run(changes)
        if events:
            events.sort(key=lambda event: float(event["at"]))
            self._events.extend(events)
            changes.live["events"] = events
            changes.state["events"] = list(self._events)
        return changes

    def _put(self, changes: Changes, topic: str, value: object) -> None:
        if self._last.get(topic, self) != value:
            self._last[topic] = value
            changes.live[topic] = changes.state[topic] = value

    def _poll_load(self, now: float, changes: Changes) -> None:
        last_s, reading = self._rates.read_s, self.source.read_ports()
        rates = self._rates.since_last(now, reading)
        if rates is None:
            if last_s is not None:  # no page was open meanwhile
                at = round(self._wall() - (now - last_s) + 1e-3, 3)  # behind the last point
                self._history.append((at, None, None))
            return
        sent, received, light, eps = rates
        point = round(self._wall(), 3), light, eps
        self._history.append(point)
        changes.state["history"] = list(self._history)
        if self._last.get("load") != (sent, received):
            self._last["load"] = sent, received
            load = {"sent": sent, "received": received, "point": point}
            changes.live["load"] = changes.state["load"] = load

    def _poll_circuits(self, changes: Changes, moved: set[str], *, every: bool) -> None:
        """Read the circuits of the OCSes that have moved.

        The controller admits traffic some time after the OCS's last event, so that a region is read
        once more at the next turn.
        """
        moving, self._moved = moved | self._moved, moved
        for region, ocs in self.source.fabric.ocses.items():
            if every or ocs.name in moving:
                self._circuits[region.name] = self.source.circuits(region)
        self._put(changes, "circuits", dict(self._circuits))

    def _poll_failures(self, changes: Changes, *, every: bool) -> list[Json]:
        """Read failures and hardware, if they may have changed; return new events of failures."""
        version = self.source.failure_version()
        if not every and version == self._failure_version:
            return []
        self._failure_version = version
        failures = [
            {"kind": failure["kind"], "what": list(failure["what"])}
            for failure in self.source.failures()
        ]
        self._put(changes, "failures", failures)
        self._put(changes, "hardware", self.source.hardware())
        known, events = self._failure_events, self.source.failure_events()
        fresh = [event for event in events if event not in known]
        known.update(fresh)
        return [self._failure_event(event) for event in fresh]

    def _poll_run(self, changes: Changes) -> None:
        status = self.source.run_status() or {}
        for part in _RUN_PARTS:
            self._put(changes, part, status.get(part))
        rest = {key: value for key, value in status.items() if key not in _RUN_PARTS}
        self._put(changes, "run", rest or None)

    def _follow_events(self) -> None:
        with suppress(MoefabricError, OSError, ValueError):
            for event in self.source.ocs_events():
                self._arrived.append(self._ocs_event(event))

    # --- events as the page shows them -----------------------------------------------------------

    def _wall_time(self, at_ns: int) -> float:
        """Return the wall time of an instant of the monotonic clock."""
        return round(self._wall() - self._clock() + at_ns / NS_PER_S, 3)

    def _failure_event(self, event: FailureEvent) -> Json:
        return {
            "at": self._wall_time(event.at_ns),
            "kind": event.phase,
            "text": f"{event.kind} {' '.join(event.what)}" + (f": {event.why}" * bool(event.why)),
        }

    def _ocs_event(self, event: Json) -> Json:
        text, at = event_text(event, self.source.fabric), self._wall_time(event["at_ns"])
        return {"at": at, "kind": event["kind"], "ocs": event["ocs"], "text": text}


class PortRates:
    """Rates of NICs between readings of their counters, in Mbit/s of the modelled cluster.

    They are rates of payload: frames that prove light aren't the cluster's, whose scale would make
    megabits of them.
    """

    def __init__(self, fabric: Fabric) -> None:
        nics = counted_nics(fabric)
        self._optical = [nic.kind is NicKind.OPTICAL for nic in nics]
        self._factor = 8e-6 * fabric.scale.bytes * fabric.scale.dilation
        self._last: tuple[float, PortReading] | None = None

    @property
    def read_s(self) -> float | None:
        """Instant of the last reading; None before the first."""
        return self._last and self._last[0]

    def since_last(
        self, now: float, reading: PortReading
    ) -> tuple[list[int], list[int], int, int] | None:
        """Return the rates since the last reading.

        Args:
            now: Seconds of a monotonic clock.
            reading: The counters.

        Returns:
            Rates sent and received by each NIC, and the sums that optical and electrical NICs sent;
            None at the first reading, and at the first one after a pause.
        """
        last, self._last = self._last, (now, reading)
        if last is None or not 0 < now - last[0] < _PAUSE_S:
            return None
        rates = reading.payload_since(last[1]) * (self._factor / (now - last[0]))
        sent = [max(0, round(rate)) for rate in rates[:, SENT].tolist()]
        received = [max(0, round(rate)) for rate in rates[:, RECEIVED].tolist()]
        light = sum(rate for rate, optical in zip(sent, self._optical, strict=True) if optical)
        return sent, received, light, sum(sent) - light


def topology_view(fabric: Fabric) -> Json:
    """Return the parts of a fabric as JSON values.

    The order of `nics` within the servers is that of readings of port counters.
    """
    return {
        "name": fabric.name,
        "description": fabric_description(fabric),
        "nic_rate": " to ".join(
            rate_text(bps) for bps in sorted({min(fabric.rates_bps), max(fabric.rates_bps)})
        ),
        "leaves": list(fabric.leaves),
        "spines": list(fabric.spines),
        "regions": [_region_view(fabric, region) for region in fabric.regions],
    }


def _region_view(fabric: Fabric, region: Region) -> Json:
    return {
        "name": region.name,
        "backup": region.backup,
        "ocs": region.ocs.name if region.ocs else None,
        "ocs_ports": region.ocs.ports if region.ocs else 0,
        "servers": [
            {
                "name": server,
                "address": fabric.addressing.addresses(server)[0],
                "nics": [str(nic) for nic in fabric.nics(server)],
                "nic_rate_bps": fabric.rate_bps(server),
                "leaves": {
                    str(nic): fabric.eps_wiring.leaf_of_nic(nic)
                    for nic in fabric.electrical_nics(server)
                    if fabric.leaves
                },
            }
            for server in region.servers
        ],
    }
