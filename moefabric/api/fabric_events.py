"""Events of a running fabric, merged by time: those of its OCSes, and its failures."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from moefabric.api.failure_injection import FailureInjection
from moefabric.api.ocs_events import iso_time
from moefabric.core.errors import MoefabricError
from moefabric.core.failures import FailureEvent
from moefabric.results.parts import Json
from moefabric.runtime.failure_log import read_failure_log

_GATHER_S: Final = 0.25
"""Time in which new events are gathered, so that they can be merged."""
_Arrived = SimpleQueue[Json | MoefabricError | None]


def fabric_events(lab: FailureInjection, *, follow: bool = False) -> Iterator[Json]:
    """Yield the events of the OCSes (as `Lab.events`) and the failures of a fabric.

    A failure has no `ocs`, but the kind of `failure`, `what` has failed, and `why` if known; its
    `kind` is the phase: inject, lost, detected, recovered or clear.

    Args:
        follow: Whether to wait for new events after the stored ones, until the fabric ends.
    """
    if not follow:
        yield from _merged([*lab.events(), *_failures(lab, set())])
        return
    arrived, is_over, known = _Arrived(), False, set[FailureEvent]()
    threading.Thread(target=_forward, args=(lab, arrived), daemon=True).start()
    while not is_over:
        batch = list[Json]()
        for item in _gathered(arrived):
            if isinstance(item, MoefabricError):
                raise item
            if item is None:
                is_over = True
            else:
                batch.append(item)
        yield from _merged([*batch, *_failures(lab, known)])


def failure_json(event: FailureEvent) -> Json:
    """Return an event of the failure log as an event of `fabric_events`."""
    what = {"failure": str(event.kind), "what": list(event.what)}
    times = {"at": iso_time(event.at_ns), "at_ns": event.at_ns}
    return {**times, "kind": event.phase, **what} | ({"why": event.why} if event.why else {})


def _failures(lab: FailureInjection, known: set[FailureEvent]) -> list[Json]:
    """Return events that aren't known yet: a later line may have an earlier instant."""
    fresh = [event for event in read_failure_log(lab.run_directory) if event not in known]
    known.update(fresh)
    return [failure_json(event) for event in fresh]


def _merged(events: list[Json]) -> list[Json]:
    return sorted(events, key=lambda event: int(event["at_ns"]))


def _forward(lab: FailureInjection, arrived: _Arrived) -> None:
    """Pass on the events of the OCSes, and at their end None or the error."""
    try:
        for event in lab.events(follow=True):
            arrived.put(event)
    except MoefabricError as error:
        arrived.put(error)
    else:
        arrived.put(None)


def _gathered(arrived: _Arrived) -> Iterator[Json | MoefabricError | None]:
    """Yield what arrives within a while; what ends the events ends that, too."""
    deadline_s = time.monotonic() + _GATHER_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        with suppress(Empty):
            yield (item := arrived.get(timeout=left_s))
            if not isinstance(item, dict):
                return
