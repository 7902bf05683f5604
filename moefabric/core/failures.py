"""Failures: plans and events of failures, and the records that the event log yields."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, Literal

from moefabric.core.failure_kinds import FailureKind

FailurePhase = Literal["inject", "lost", "clear", "detected", "recovered"]
"""A failure begins with `inject`, or with `lost` if nobody has injected it."""
_BEGINNINGS: Final = ("inject", "lost")


class ControllerFailureMode(StrEnum):
    """The way in which a controller's process fails."""

    KILL = "kill"
    STOP = "stop"


@dataclass(frozen=True)
class Failure:
    """Components that fail together.

    Names: NICs (`s0/e0`), optical NICs for their OCS ports (`s0/o0`), OCSes (`ocs0`), GPUs
    (`s1/3`), servers (`s3`), controllers (a region's name, or `eps`).
    """

    kind: FailureKind
    what: tuple[str, ...]
    how: ControllerFailureMode = ControllerFailureMode.KILL

    def __str__(self) -> str:
        stopped = self.kind.traits.restarts and not self.restarts
        return f"{self.kind} {' '.join(self.what)}{' (stopped)' if stopped else ''}"

    @property
    def restarts(self) -> bool:
        """True if the components start again by themselves."""
        return self.kind.traits.restarts and self.how is ControllerFailureMode.KILL


@dataclass(frozen=True)
class PlannedFailure:
    """A failure that an experiment plans.

    Attributes:
        failure: The components that fail.
        iteration: The iteration, counted from 0.
        collective: The collective of that iteration, counted from 0; None for the iteration itself.
        after_ns: Model time from the start of the collective or iteration.
        clear: The iteration at whose start the failure is cleared; None for never.
    """

    failure: Failure
    iteration: int
    collective: int | None = None
    after_ns: int = 0
    clear: int | None = None


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """A line of the failure log: a phase of a failure at an instant of CLOCK_MONOTONIC.

    `why` is the evidence of a detection or loss, or the action of a recovery.
    """

    at_ns: int
    phase: FailurePhase
    kind: FailureKind
    what: tuple[str, ...]
    why: str = ""

    @property
    def begins(self) -> bool:
        """True if a failure begins with this event."""
        return self.phase in _BEGINNINGS

    def about(self, name: str) -> bool:
        """Return whether the event concerns a component, or the server that holds it."""
        in_server = self.kind is FailureKind.SERVER and name.partition("/")[0] in self.what
        return name in self.what or in_server

    def about_injected(self, injection: "FailureEvent") -> bool:
        """Return whether the event concerns components that `injection` made fail."""
        kinds = {injection.kind, *injection.kind.traits.detected_as}
        return self.kind in kinds and any(self.about(name) for name in injection.what)


@dataclass(frozen=True, slots=True)
class IterationWindow:
    """Start and end of an iteration on the wall clock, including the clearing before it.

    `seconds` is the iteration's duration in model time.
    """

    number: int
    start_ns: int
    end_ns: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """A failure with the instants of its phases (CLOCK_MONOTONIC; None for never)."""

    kind: FailureKind
    what: tuple[str, ...]
    injected_ns: int
    detected_ns: int | None = None
    recovered_ns: int | None = None
    cleared_ns: int | None = None
    detected_by: str = ""
    action: str = ""

    def disturbs(
        self,
        start_ns: int,
        end_ns: int,
        planned_ns: Sequence[int] = (),
        reopened_ns: Sequence[int] = (),
    ) -> bool:
        """Return whether the failure affected an activity whose plan didn't take it into account.

        Args:
            planned_ns: Instants at which circuits were planned anew, ascending.
            reopened_ns: Instants at which reopened connections had carried their first bytes,
                ascending.
        """
        spans = list(self._disturbed_spans(planned_ns))
        if self.recovered_ns is not None and self.kind.traits.loses_ranks:
            slow_until = _first_after(reopened_ns, self.recovered_ns)
            spans += [(self.recovered_ns, slow_until)] if slow_until is not None else []
        return any(begin < end_ns and (end is None or start_ns < end) for begin, end in spans)

    def _disturbed_spans(self, planned_ns: Sequence[int]) -> Iterator[tuple[int, int | None]]:
        """Yield the start and end of each span in which plans ignore the failure or its clearing.

        No plan accounts for a lost electrical NIC. Lost or restored circuits are known to the next
        plan. The end None means that the span lasts.
        """
        electrical = any("/e" in name for name in self.what)
        known, traits = self.recovered_ns, self.kind.traits
        if traits.plan_avoids and known is not None:
            known = _first_after(planned_ns, known)
        ends = [self.cleared_ns] if electrical else [known, self.cleared_ns]
        yield self.injected_ns, min((at for at in ends if at is not None), default=None)
        if self.cleared_ns is not None:
            replanned = traits.plan_returns and not electrical
            later = _first_after(planned_ns, self.cleared_ns) if replanned else None
            yield self.cleared_ns, self.cleared_ns if later is None else later

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Return whether a component was broken during some of that time.

        A controller restarts by itself; every other component stays broken until it is cleared.
        """
        ends = self.cleared_ns
        if ends is None and self.kind.traits.restarts:
            ends = self.recovered_ns
        return self.injected_ns <= end_ns and (ends is None or start_ns <= ends)


def _first_after(instants: Sequence[int], instant_ns: int) -> int | None:
    """Return the first of ascending instants that isn't earlier; None if all are."""
    place = bisect_left(instants, instant_ns)
    return instants[place] if place < len(instants) else None


def failure_records(events: Sequence[FailureEvent]) -> list[FailureRecord]:
    """Return the failures, each with its events until the same components fail again.

    Args:
        events: The failure log in order of time.
    """
    records = []
    for position, injection in enumerate(events):
        if not injection.begins:
            continue
        later = [event for event in events[position + 1 :] if event.about_injected(injection)]
        until = next((event.at_ns for event in later if event.begins), inf)
        cleared = next((e.at_ns for e in later if e.phase == "clear" and e.at_ns < until), None)
        # Events after the clearing are about the return of the component.
        before = [e for e in later if e.at_ns < until and (cleared is None or e.at_ns <= cleared)]
        detections, recoveries = (
            [event for event in before if event.phase == phase]
            for phase in ("detected", "recovered")
        )
        detected_by, action = (
            "; ".join(dict.fromkeys(event.why for event in phase_events if event.why))
            for phase_events in (detections, recoveries)
        )
        records.append(
            FailureRecord(
                injection.kind,
                injection.what,
                injection.at_ns,
                detections[0].at_ns if detections else None,
                _recovered_ns(injection, recoveries),
                cleared,
                detected_by,
                action,
            )
        )
    return records


def _recovered_ns(injection: FailureEvent, recoveries: Sequence[FailureEvent]) -> int | None:
    """Return when the last of the injected components recovered, or None while one hasn't."""
    firsts = [
        next((event.at_ns for event in recoveries if event.about(name)), None)
        for name in injection.what
    ]
    recovered = [at for at in firsts if at is not None]
    return max(recovered) if len(recovered) == len(firsts) else None


def healthy_windows(
    failures: Sequence[FailureRecord], windows: Iterable[IterationWindow]
) -> list[IterationWindow]:
    """Return the iterations in which no component was broken or being cleared."""

    def is_healthy(window: IterationWindow) -> bool:
        span = window.start_ns, window.end_ns
        return not any(failure.overlaps(*span) or failure.disturbs(*span) for failure in failures)

    return list(filter(is_healthy, windows))
