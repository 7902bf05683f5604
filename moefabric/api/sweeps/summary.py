"""Summary of a sweep: its runs, their figures at each point, and its failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moefabric.api.sweeps.results import RunRecord, is_invalid
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.api.sweeps.statistics import PointFabric, point_fabrics


@dataclass(frozen=True)
class SweepSummary:
    """The runs of a sweep that have ended.

    Attributes:
        spec: The sweep.
        version: Version of moefabric.
        planned: Number of its runs.
        records: The runs that have ended, in the order of the plan.
    """

    spec: SweepSpec
    version: str
    planned: int
    records: Sequence[RunRecord]

    @cached_property
    def points(self) -> list[PointFabric]:
        """Figures of each fabric at each point."""
        return point_fabrics(self.records, self.spec.figures, self.spec.baseline)

    @property
    def failed(self) -> list[RunRecord]:
        """Runs without a result."""
        return [record for record in self.records if record.failed]

    @property
    def invalid(self) -> list[RunRecord]:
        """Runs with a fabric whose measurements can't be trusted."""
        return [record for record in self.records if is_invalid(record)]

    @property
    def hosts(self) -> Mapping[str, int]:
        """Number of runs on each machine."""
        hosts: dict[str, int] = {}
        for record in self.records:
            host = record.attempts[-1].host
            hosts[host] = hosts.get(host, 0) + 1
        return hosts

    @property
    def missing(self) -> int:
        """Number of runs that have not ended."""
        return self.planned - len(self.records)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON types."""
        return {
            "sweep": self.spec.sweep,
            "version": self.version,
            "spec": self.spec.model_dump(mode="json", exclude_unset=True),
            "runs": {
                "planned": self.planned,
                "ended": len(self.records),
                "failed": len(self.failed),
                "invalid": len(self.invalid),
            },
            "hosts": dict(self.hosts),
            "failures": [record.to_json() for record in self.failed],
            "points": [point.to_json() for point in self.points],
        }
