"""What was seen of a region's stage on packets: the all-to-alls of each job, network and rate, and how long light took to move."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from moefabric.experiment.results import STOLEN, Json
from moefabric.fidelity import DISTURBED, LATENESS_P95, Verdict
from moefabric.paper.job import Job
from moefabric.paper.network import AllToAll, Counts
from moefabric.paper.scene import UnmeasuredError
from moefabric.units import NS_PER_S


class Cell(NamedTuple):
    """One job's region on one network, with NICs of one rate."""

    job: str
    network: str
    rate_bps: float


@dataclass(frozen=True)
class Seen:
    """A cell's all-to-alls as they went, in the model's seconds. `errors` are measured / predicted - 1 of those that nobody disturbed.

    `fluid_s` is what the fluid model has for one layer of these flows over this light, `disturbed` the part of the collectives that others' use of the machine
    may have changed (told, and left out where there are others), `late` how far apart senders started (95th percentile, of a collective's time).
    """

    sent: AllToAll
    fluid_s: float
    errors: tuple[float, ...]
    disturbed: float
    late: float
    verdict: str
    reasons: tuple[str, ...]
    light: float

    @property
    def believed(self) -> bool:
        """Whether the machine was ours while it was measured."""
        return self.disturbed <= DISTURBED.degraded and self.late <= LATENESS_P95.degraded

    def to_json(self) -> Json:
        """As the command writes it."""
        return {
            "dispatch_s": self.sent.dispatch_s,
            "combine_s": self.sent.combine_s,
            "circuits": int(self.sent.circuits.sum()) // 2,
            "layer_s": self.sent.layer_s,
            "fluid_layer_s": self.fluid_s,
            "errors": list(self.errors),
            "disturbed": self.disturbed,
            "late": self.late,
            "bytes_by_light": self.light,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
        }


def seen(entry: Mapping[str, Any], circuits: Counts) -> Seen:
    """A run's result (`moefabric.experiment.results.result`) as a cell, with the circuits that it had, [server, server]."""
    collectives, fidelity = entry["collectives"], entry["fidelity"]
    ours = [c for c in collectives if c["stolen_cpu"] <= STOLEN]
    by_kind = [
        [c for c in ours if c["kind"] == kind] or [c for c in collectives if c["kind"] == kind]
        for kind in ("dispatch", "combine")
    ]
    dispatch_s, combine_s = (mean(c["measured_s"] for c in those) for those in by_kind)
    whole = sum(c["bytes"] for c in collectives)
    return Seen(
        sent=AllToAll(dispatch_s, combine_s, circuits),
        fluid_s=2 * sum(mean(c["predicted_s"] for c in those) for those in by_kind),
        errors=tuple(c["measured_s"] / c["predicted_s"] - 1 for c in ours),
        disturbed=fidelity["disturbed"],
        late=fidelity["start_lateness_p95"] or 0.0,
        verdict=fidelity["verdict"],
        reasons=tuple(fidelity["reasons"]),
        light=sum(c["bytes_by_light"] for c in collectives) / whole if whole else 0.0,
    )


def better(first: Seen, again: Seen) -> Seen:
    """Of two measurements of a cell, the one that others disturbed less."""
    return min((first, again), key=lambda each: (not each.believed, each.disturbed, each.late))


@dataclass(frozen=True)
class Packets:
    """All that was measured: cells, and by the settle time of the OCS (nanoseconds) how many seconds traffic waited for new light.

    `lost` are cells that ended in a fault, twice over, with what was said of it.
    """

    cells: Mapping[Cell, Seen]
    waits: Mapping[int, float] = field(default_factory=dict)
    lost: Mapping[Cell, str] = field(default_factory=dict)

    def all_to_all(self, job: Job, network: str, rate_bps: float) -> AllToAll:
        """As it was measured. UnmeasuredError where it wasn't."""
        try:
            return self.cells[Cell(job.name, network, rate_bps)].sent
        except KeyError:
            raise UnmeasuredError(f"{job.name} on {network}") from None

    def waited_s(self, delay_s: float) -> float:
        """Seconds from demand in to traffic on new light; none where nothing has to move. UnmeasuredError where no such OCS was emulated."""
        try:
            return self.waits[round(delay_s * NS_PER_S)] if delay_s else 0.0
        except KeyError:
            raise UnmeasuredError(f"an OCS that settles in {delay_s:g} s") from None

    @property
    def errors(self) -> Sequence[float]:
        """Absolute completion errors of all collectives that nobody disturbed."""
        return [abs(error) for cell in self.cells.values() for error in cell.errors]

    @property
    def median_error(self) -> float | None:
        """Their median; None where nothing was measured undisturbed."""
        return median(self.errors) if self.errors else None

    @property
    def disturbed(self) -> int:
        """How many cells were measured while others used the machine, twice over."""
        return sum(not each.believed for each in self.cells.values())

    @property
    def invalid(self) -> bool:
        """Whether some cell was lost, or can't be believed though the machine was ours."""
        return bool(self.lost) or any(
            each.verdict == Verdict.INVALID and each.believed for each in self.cells.values()
        )

    def to_json(self) -> Json:
        """Every cell."""
        return {
            "completion_error_p50": self.median_error,
            "completion_error_p95": float(np.percentile(self.errors, 95)) if self.errors else None,
            "disturbed_cells": self.disturbed,
            "reconfiguration_s": {f"{settle / NS_PER_S:g}": wait for settle, wait in self.waits.items()},
            "lost": [{**cell._asdict(), "why": why} for cell, why in self.lost.items()],
            "cells": [{**cell._asdict(), **each.to_json()} for cell, each in self.cells.items()],
        }
