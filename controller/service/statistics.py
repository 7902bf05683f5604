"""Counts of a controller: requests, reconfigurations, and how long their phases took."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the classes of phases, in s; a last class has no bound."""


class ControllerStatistics:
    """Counts since the controller's start.

    Attributes:
        failed: Reconfigurations that ended with an error.
    """

    def __init__(self) -> None:
        self.failed = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._classes: dict[str, list[int]] = {}
        self._sums_s: defaultdict[str, float] = defaultdict(float)

    def count_request(self, path: str, status: int) -> None:
        """Count a request by its path, which is one of the interface's, and its HTTP status."""
        self._requests[path, status] += 1

    def count_reconfiguration(self, phases_s: Mapping[str, float]) -> None:
        """Count a reconfiguration with the duration of each phase, in s."""
        for phase, seconds in phases_s.items():
            classes = self._classes.setdefault(phase, [0] * (len(BOUNDS_S) + 1))
            classes[bisect_left(BOUNDS_S, seconds)] += 1
            self._sums_s[phase] += seconds

    def to_json(self) -> dict[str, Any]:
        """Return requests by path and status, failures, and phases as classes and sums."""
        return {
            "requests": [
                {"path": path, "status": status, "count": count}
                for (path, status), count in sorted(self._requests.items())
            ],
            "failed": self.failed,
            "bounds_s": list(BOUNDS_S),
            "phases": {
                phase: {"classes": classes, "sum_s": self._sums_s[phase]}
                for phase, classes in self._classes.items()
            },
        }
