"""Measurements of emulated regions: all-to-alls of each cell, and reconfiguration times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from moefabric import NS_PER_S
from moefabric.api.results import CPU_STEAL_LIMIT, DISTURBED, LATENESS, Json, Verdict
from moefabric_studies.paper.evaluation import InvalidCellError, UnmeasuredError
from moefabric_studies.paper.job import Counts, PaperJob
from moefabric_studies.paper.network import AllToAll


class Cell(NamedTuple):
    """A job's region on a network with NICs of one rate."""

    job: str
    network: str
    rate_bps: float


@dataclass(frozen=True)
class CellMeasurement:
    """All-to-alls of a cell as they were measured, in model seconds.

    Attributes:
        all_to_all: mean times, of undisturbed collectives if there are any.
        fluid_layer_s: time of a layer's all-to-alls in the fluid model, for the same flows and
            circuits.
        errors: measured / predicted - 1 of each undisturbed collective.
        disturbed: part of the collectives during which other programs used the machine.
        late: 95th percentile of the spread of the senders' start times, relative to the
            collective's duration.
        bytes_by_light: part of the counted bytes that used circuits; None if nobody counted.
        verdict: verdict of the run.
        reasons: reasons for the verdict.
    """

    all_to_all: AllToAll
    fluid_layer_s: float
    errors: tuple[float, ...]
    disturbed: float
    late: float
    bytes_by_light: float | None
    verdict: str
    reasons: tuple[str, ...]

    @property
    def is_invalid(self) -> bool:
        """True if the measurement must not be used."""
        return self.verdict == Verdict.INVALID

    @property
    def is_undisturbed(self) -> bool:
        """True if no other programs used the machine during the measurement."""
        return not (*DISTURBED.judge(self.disturbed), *LATENESS.judge(self.late, place=""))

    def to_json(self) -> Json:
        """Return the measurement as JSON types."""
        return {
            "dispatch_s": self.all_to_all.dispatch_s,
            "combine_s": self.all_to_all.combine_s,
            "circuits": int(self.all_to_all.circuits.sum()) // 2,
            "layer_s": self.all_to_all.layer_s,
            **{name: value for name, value in vars(self).items() if name != "all_to_all"},
        }


def cell_measurement(result: Mapping[str, Any], circuits: Counts) -> CellMeasurement:
    """Return the measurement of a cell.

    Args:
        result: JSON of the run's result (`moefabric.results.verdict.fabric_result.fabric_result`).
        circuits: number of circuits [server, server] during the run.
    """
    collectives, fidelity = result["collectives"], result["fidelity"]
    undisturbed = [c for c in collectives if c["cpu_steal"] <= CPU_STEAL_LIMIT]
    by_kind = [
        [c for c in undisturbed if c["kind"] == kind]
        or [c for c in collectives if c["kind"] == kind]
        for kind in ("dispatch", "combine")
    ]
    dispatch_s, combine_s = (mean(c["measured_s"] for c in kind) for kind in by_kind)
    counted = [c for c in collectives if None not in (c["bytes_by_light"], c["bytes_by_eps"])]
    optical_bytes = sum(c["bytes_by_light"] for c in counted)
    total_bytes = optical_bytes + sum(c["bytes_by_eps"] for c in counted)
    return CellMeasurement(
        all_to_all=AllToAll(dispatch_s, combine_s, circuits),
        fluid_layer_s=2 * sum(mean(c["predicted_s"] for c in kind) for kind in by_kind),
        errors=tuple(c["measured_s"] / c["predicted_s"] - 1 for c in undisturbed),
        disturbed=fidelity["disturbed"],
        late=fidelity["start_lateness_p95"] or 0.0,
        verdict=fidelity["verdict"],
        reasons=tuple(fidelity["reasons"]),
        bytes_by_light=optical_bytes / total_bytes if total_bytes else None,
    )


def less_disturbed(*measurements: CellMeasurement) -> CellMeasurement:
    """Return the least disturbed measurement of a cell, a valid one if there is any."""
    return min(
        measurements,
        key=lambda cell: (cell.is_invalid, not cell.is_undisturbed, cell.disturbed, cell.late),
    )


@dataclass(frozen=True)
class WaitTimes:
    """Distribution of the times that traffic waited for new circuits.

    Attributes:
        seconds: time of each reconfiguration, from the demand to traffic on all circuits.
    """

    seconds: tuple[float, ...]

    @property
    def p50_s(self) -> float:
        """Median, which the tables use."""
        return median(self.seconds)

    @property
    def p95_s(self) -> float:
        """95th percentile."""
        return float(np.percentile(self.seconds, 95))

    def to_json(self) -> Json:
        """Return the distribution as JSON types."""
        return {"p50_s": self.p50_s, "p95_s": self.p95_s, "n": len(self.seconds)}


@dataclass(frozen=True)
class Measurements:
    """Measurements of all cells.

    Attributes:
        cells: measurements by cell.
        waits: times that traffic waited for new circuits, by the OCS's settle time in
            nanoseconds.
        lost: cells that ended in an error in every attempt, with the error.
    """

    cells: Mapping[Cell, CellMeasurement]
    waits: Mapping[int, WaitTimes] = field(default_factory=dict)
    lost: Mapping[Cell, str] = field(default_factory=dict)

    def all_to_all(self, job: PaperJob, network: str, rate_bps: float) -> AllToAll:
        """Return the measured all-to-alls of a cell.

        Raises:
            UnmeasuredError: if the cell has not been measured.
            InvalidCellError: if its measurement is invalid.
        """
        try:
            measurement = self.cells[Cell(job.name, network, rate_bps)]
        except KeyError:
            raise UnmeasuredError(f"{job.name} on {network}") from None
        if measurement.is_invalid:
            raise InvalidCellError(f"{job.name} on {network}: {'; '.join(measurement.reasons)}")
        return measurement.all_to_all

    def wait_s(self, settle_s: float) -> float:
        """Return the median time from a demand to traffic on its circuits; 0 without a change.

        Raises:
            UnmeasuredError: if no OCS with this settle time has been emulated.
        """
        try:
            return self.waits[round(settle_s * NS_PER_S)].p50_s if settle_s else 0.0
        except KeyError:
            raise UnmeasuredError(f"an OCS that settles in {settle_s:g} s") from None

    @property
    def errors(self) -> Sequence[float]:
        """Signed errors of the completion times of undisturbed collectives, of valid cells."""
        valid = (cell for cell in self.cells.values() if not cell.is_invalid)
        return [error for cell in valid for error in cell.errors]

    def error_quantile(self, percent: float) -> float | None:
        """Return a percentile of the signed errors; None without undisturbed collectives."""
        return float(np.percentile(self.errors, percent)) if self.errors else None

    @property
    def invalid(self) -> int:
        """Number of cells whose measurements are invalid."""
        return sum(cell.is_invalid for cell in self.cells.values())

    @property
    def disturbed(self) -> int:
        """Number of cells whose measurements were disturbed in every attempt."""
        return sum(not cell.is_undisturbed for cell in self.cells.values())

    @property
    def is_invalid(self) -> bool:
        """True if a cell was lost or is invalid."""
        return bool(self.lost) or self.invalid > 0

    def to_json(self) -> Json:
        """Return the measurements as JSON types."""
        return {
            "completion_error": {
                "n": len(self.errors),
                **{f"p{percent}": self.error_quantile(percent) for percent in (5, 50, 95)},
            },
            "disturbed_cells": self.disturbed,
            "invalid_cells": self.invalid,
            "reconfiguration": {
                f"{settle_ns / NS_PER_S:g}": wait.to_json()
                for settle_ns, wait in self.waits.items()
            },
            "lost": [{**cell._asdict(), "why": why} for cell, why in self.lost.items()],
            "cells": [
                {**cell._asdict(), **measurement.to_json()}
                for cell, measurement in self.cells.items()
            ],
        }
