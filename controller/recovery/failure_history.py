"""The failures that a controller detected, and its action on each."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any, Final

from moefabric.controller.recovery.failure_state import DetectedFailure
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailurePhase

MOST_CLEARED: Final = 1000
"""Number of cleared failures that the history keeps."""


@dataclass(eq=False)
class FailureReport:
    """Failure of a component, with instants of CLOCK_MONOTONIC.

    Attributes:
        number: Number of the report, from 1.
        what: The failed component.
        detected_ns: When the controller noticed it.
        recovered_ns: When traffic had another path; None for not yet.
        cleared_ns: When the component worked again; None for not yet.
        action: What the controller did, as text.
    """

    number: int
    what: str
    kind: FailureKind
    detected_ns: int
    recovered_ns: int | None = None
    cleared_ns: int | None = None
    action: str = ""

    @property
    def failure(self) -> DetectedFailure:
        """The failure that this report is about."""
        return DetectedFailure(self.what, self.kind)


@dataclass(eq=False)
class FailureHistory:
    """All failures of a controller that are not cleared, and the latest cleared ones.

    Attributes:
        clock_ns: CLOCK_MONOTONIC.
        event: Makes the events that readers wait for, with `set()` and `wait(seconds)`.
        note: Called with the report and the action when a failure is detected, and for each action
            since traffic has a path.
        version: Increases with every change, of circuits too.
    """

    clock_ns: Callable[[], int] = time.monotonic_ns
    event: Callable[[], Any] = threading.Event
    note: Callable[[FailurePhase, FailureReport, str, int], object] = lambda *_: None
    version: int = field(default=0, init=False)
    _reports: list[FailureReport] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Make the event of the first change."""
        self._changed, self._numbers = self.event(), count(1)

    def standing(self) -> list[FailureReport]:
        """Return the failures that are not cleared."""
        return [report for report in self._reports if report.cleared_ns is None]

    def add(self, failures: Iterable[DetectedFailure], at_ns: int) -> list[FailureReport]:
        """Add failures that were detected at an instant; return reports of those that are new."""
        standing = {report.failure for report in self.standing()}
        reports = [
            FailureReport(next(self._numbers), failure.what, failure.kind, at_ns)
            for failure in failures
            if failure not in standing
        ]
        cleared = [report for report in self._reports if report.cleared_ns is not None]
        for report in cleared[:-MOST_CLEARED]:
            self._reports.remove(report)
        self._reports += reports
        for report in reports:
            self.note("detected", report, "", at_ns)
        if reports:
            self.publish()
        return reports

    def record_action(self, report: FailureReport, action: str, *, recovered: bool = True) -> None:
        """Record an action on a failure, and whether traffic has a path thanks to it."""
        report.action += f"; {action}" if report.action else action
        now_ns = self.clock_ns()
        if report.recovered_ns is not None:
            self.note("recovered", report, action, now_ns)
        elif recovered:
            report.recovered_ns = now_ns
            self.note("recovered", report, report.action, now_ns)
        self.publish()

    def clear(self, is_over: Callable[[DetectedFailure], bool]) -> None:
        """Clear the failures that are over."""
        over = [report for report in self.standing() if is_over(report.failure)]
        now_ns = self.clock_ns()
        for report in over:
            report.cleared_ns = now_ns
        if over:
            self.publish()

    def to_json(self, after: int | None = None, wait_s: float = 30.0) -> dict[str, Any]:
        """Return `version` and `failures`.

        Args:
            after: Wait until the version is later than this; None for no wait.
            wait_s: How long to wait for that.
        """
        changed = self._changed  # before the comparison: a later version sets this event
        if after is not None and self.version <= after:
            changed.wait(wait_s)
        reports = [asdict(report) for report in self._reports]
        return {"version": self.version, "failures": reports}

    def publish(self) -> None:
        """Increase the version, and wake all readers that wait for it."""
        self.version += 1
        changed, self._changed = self._changed, self.event()
        changed.set()
