"""Delivers NIC events of a controller's switches to its recovery, without delay and in order."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from moefabric.controller.recovery.failure_state import NicEvent
from moefabric.controller.southbound.openflow import green
from moefabric.core.errors import ControlError
from moefabric.core.nic import Nic, NicKind
from moefabric.core.topology import Region
from moefabric.core.units import NS_PER_S

log = logging.getLogger(__name__)

_QUIET_S: Final = 0.02
"""Time without events after which circuits are planned again. The ports of an OCS that loses power
go down one after the other, and the OCS must not be commanded before the last one is down."""
_MOST_QUIET_WAITS: Final = 50
_RETRY_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Delays between attempts to restore circuits and relays; after these, the next demand tries."""
_RULES_S: Final = 0.005
_CIRCUITS_S: Final = 0.025
"""Expected work on rules and on circuits until some was measured, in seconds."""
_SAMPLES: Final = 8


@dataclass
class DilatedWork:
    """Work on failures that takes as long in model time as it takes in wall time.

    Packets are under way meanwhile, so the work itself has to come later in a dilated run.

    Work of c wall seconds is to end c x dilation after its cause. The wait comes before the work,
    whose duration isn't known by then: it is expected to be the median of the last ones. The
    difference of both is all that a run at dilation d wins or loses, times 1 - 1/d in model time.

    Attributes:
        dilation: Factor by which the run's times are stretched.
        first_s: Expected seconds of the first work.
        sleep: Waits for so many seconds.
        clock_s: Seconds of a monotonic clock.
    """

    dilation: float
    first_s: float
    sleep: Callable[[float], object]
    clock_s: Callable[[], float] = time.monotonic
    _took_s: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    @property
    def expected_s(self) -> float:
        """The expected seconds of the next work."""
        return median(self._took_s) if self._took_s else self.first_s

    @contextmanager
    def delayed(self, since_s: float = 0.0, settle_s: float = 0.0) -> Iterator[None]:
        """Wait before the work inside the `with`, and time it.

        Args:
            since_s: Seconds since the cause of the work.
            settle_s: Seconds of settling in the work, which are dilated already.
        """
        if self.dilation > 1:
            self.sleep((self.dilation - 1) * (since_s + self.expected_s))
        started_s = self.clock_s()
        yield
        took_s = self.clock_s() - started_s
        self._took_s.append(took_s - settle_s if took_s > settle_s else took_s)


@dataclass(eq=False)
class NicEventDispatcher:
    """Queues NIC events and delivers them from two green threads: rules first, circuits later.

    Attributes:
        region: The controller's region; None for the EPS.
        dilation: Factor by which the run's times are stretched. The controller's work and its
            pauses are stretched, too.
        starting: Whether the controller has not adopted circuits yet. The NICs that are out then
            are part of its start, which is not stretched. It would else probe their circuits first.
        handle_events: Changes the rules; returns whether circuits or relays should change too.
        relay: Uses lit circuits for relays; returns whether a server needs further circuits.
        relight: Plans and lights circuits again. Both are called again after a ControlError.
        clock_ns: CLOCK_MONOTONIC.
    """

    region: Region | None
    dilation: float
    starting: Callable[[], bool]
    handle_events: Callable[[list[NicEvent]], bool]
    relay: Callable[[], bool]
    relight: Callable[[], None]
    clock_ns: Callable[[], int] = time.monotonic_ns

    def __post_init__(self) -> None:
        """Deliver all events from now on."""
        self._rules = DilatedWork(self.dilation, _RULES_S, green.sleep)
        self._circuits = DilatedWork(self.dilation, _CIRCUITS_S, green.sleep)
        ocs = self.region.ocs if self.region else None
        self._settle_s = (ocs.settle_ns + ocs.link_up.fixed_ns) / NS_PER_S if ocs else 0.0
        self._idle_ns = 0
        """Since when there has been nothing to deliver."""
        self._links_follow_light = bool(ocs and ocs.link_down)
        self._events, self._repair_due = green.GreenQueue[NicEvent](), green.GreenEvent()
        green.spawn(self._deliver)
        green.spawn(self._repair)

    def port_changed(self, _switch: str, peer: str, up: bool) -> None:  # noqa: FBT001 - a callback
        """Queue a link change of a packet switch's port, unless no NIC is plugged in there."""
        if "/" not in peer:
            return
        nic = Nic.parse(peer)
        follows_light = self._links_follow_light and nic.kind is NicKind.OPTICAL
        self._events.put(NicEvent(nic, up, self.clock_ns(), follows_light=follows_light))

    def repair(self) -> None:
        """Have circuits and relays restored, as after an event."""
        self._repair_due.set()

    def delayed_rules(self) -> AbstractContextManager[None]:
        """Return the delay of work on rules, around that work."""
        return self._rules.delayed()

    def ocs_ports_changed(self, states: Sequence[tuple[Nic, bool]]) -> None:
        """Queue state changes of OCS ports, each named by its NIC."""
        now_ns = self.clock_ns()
        for nic, works in states:
            self._events.put(NicEvent(nic, works, now_ns, ocs_port=True))

    def _deliver(self) -> None:
        while True:
            events = self._events.take_all()
            try:
                with self._delayed(events):
                    repair = self.handle_events(events)
                if repair:
                    self._repair_due.set()
            except Exception:  # a programming error must not lose later events
                log.exception("events not handled: %s", events)
            self._idle_ns = self.clock_ns()

    def _delayed(self, events: Sequence[NicEvent]) -> AbstractContextManager[None]:
        """Return the delay of the work on events.

        There is none while the controller starts, or for links that go down with their light.
        Whether such a link has failed shows only while its circuit is dark.
        """
        if self.starting() or all(event.follows_light and not event.up for event in events):
            return nullcontext()
        first_ns = max(self._idle_ns, min(event.at_ns for event in events))
        return self._rules.delayed((self.clock_ns() - first_ns) / NS_PER_S)

    def _wait_quiet(self) -> None:
        """Wait until no event comes for a while; limit the wait in case a NIC keeps flapping."""
        for _ in range(_MOST_QUIET_WAITS):
            if not self._repair_due.wait(self.dilation * _QUIET_S):
                return
            self._repair_due = green.GreenEvent()

    def _repair(self) -> None:
        """Repair circuits after failures, in a thread of its own because that may take long."""
        while True:
            while not self._repair_due.wait(3600):
                pass
            self._repair_due = green.GreenEvent()
            for retry_s in _RETRY_S:
                try:
                    with self._rules.delayed():
                        needs_circuits = self.relay()
                    if not needs_circuits:
                        self._wait_quiet()
                    with self._circuits.delayed(settle_s=self._settle_s):
                        self.relight()
                    break
                except ControlError as error:
                    log.warning("circuits or relays not restored yet: %s", error)
                except Exception:  # a programming error in one repair must not end the later ones
                    log.exception("circuits not restored")
                    break
                if self._repair_due.wait(self.dilation * retry_s):
                    break
