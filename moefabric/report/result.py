"""A result: one fabric's figures, as table and page show them, with what follows from them.

Times are the model's seconds and bytes the model's bytes. A figure that a run lacks is None.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from moefabric.baseline import blocking

PHASES = ("demand", "plan", "divert", "command", "settle", "verify", "admit")
"""The phases of a reconfiguration, in their order; each is `<phase>_s` in the JSON."""

VERDICTS = ("pass", "degraded", "invalid")
"""From best to worst."""

BASELINE = "eps"
"""Policy, or name, of the fabric that the others are measured against."""


@dataclass(frozen=True)
class AllToAll:
    """One dispatch or combine: its completion time, measured and by the fluid model."""

    measured_s: float
    predicted_s: float | None
    region: str = ""
    iteration: int = 0
    layer: int = 0
    kind: str = ""
    backward: bool = False

    @property
    def error(self) -> float | None:
        """How much longer it took than predicted, as a share of the prediction."""
        return self.measured_s / self.predicted_s - 1 if self.predicted_s else None


@dataclass(frozen=True)
class Reconfiguration:
    """One reconfiguration: seconds by phase, and in all. `moved` is False where the circuits wanted were lit already."""

    name: str
    moved: bool
    phases: Mapping[str, float]
    total_s: float

    @property
    def control_s(self) -> float:
        """What it took without waiting for light: every phase but settle."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "settle")


@dataclass(frozen=True)
class Interval:
    """What one server did from when to when, in one iteration."""

    server: str
    kind: str
    backward: bool
    layer: int | None
    start_s: float
    end_s: float
    micro_batch: int = 0


@dataclass(frozen=True)
class Result:
    """One fabric under a policy, its figures (medians over iterations) and its verdict."""

    name: str
    policy: str
    verdict: str
    reasons: tuple[str, ...]
    iterations: int = 0
    iteration_s: float | None = None
    predicted_iteration_s: float | None = None
    compute_s: float | None = None
    exposed_s: float | None = None
    all_to_alls: tuple[AllToAll, ...] = ()
    ratio_measured: float | None = None
    ratio_predicted: float | None = None
    bytes_by_light: float = 0.0
    bytes_by_eps: float = 0.0
    dark_s: float = 0.0
    reconfigurations: tuple[Reconfiguration, ...] = ()
    timeline: tuple[Interval, ...] = ()
    demand: tuple[tuple[float, ...], ...] = ()
    demand_label: str = ""
    circuits: tuple[tuple[str, str], ...] = ()
    network_usd: float | None = None
    dollar_to_eps: float | None = None
    """How many times as many iterations a dollar of its network buys as one of `eps`."""
    unpriced: str = ""
    wiring: Mapping[str, Any] = field(default_factory=dict)
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The servers of each region, where there are several."""
    stages: int = 1
    """Pipeline stages of a job: regions one after the other."""
    fidelity: Mapping[str, Any] = field(default_factory=dict)
    integrity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured_s(self) -> float | None:
        """Median completion time of its all-to-alls."""
        return middle(a.measured_s for a in self.all_to_alls)

    @property
    def predicted_s(self) -> float | None:
        """Median of the fluid predictions of its all-to-alls."""
        return middle(a.predicted_s for a in self.all_to_alls if a.predicted_s is not None)

    @property
    def error(self) -> float | None:
        """Median of its all-to-alls' signed errors."""
        return middle(a.error for a in self.all_to_alls if a.error is not None)

    @property
    def error_p95(self) -> float | None:
        """95th percentile of its all-to-alls' errors, sign left out."""
        errors = sorted(abs(a.error) for a in self.all_to_alls if a.error is not None)
        if len(errors) < 2:
            return errors[0] if errors else None
        return quantiles(errors, n=20, method="inclusive")[-1]

    @property
    def per_million_usd(self) -> float | None:
        """Iterations a second for each million dollars of network."""
        if not self.network_usd or not self.iteration_s:
            return None
        return 1e6 / (self.iteration_s * self.network_usd)

    @property
    def exposed_share(self) -> float | None:
        """Exposed communication as a share of the iteration."""
        if self.exposed_s is None or not self.iteration_s:
            return None
        return self.exposed_s / self.iteration_s

    @property
    def light_share(self) -> float | None:
        """Bytes that went by light, as a share of all."""
        whole = self.bytes_by_light + self.bytes_by_eps
        return self.bytes_by_light / whole if whole else None

    @property
    def changes(self) -> tuple[Reconfiguration, ...]:
        """The reconfigurations that moved light, or all of them where none did: those worth timing."""
        return tuple(r for r in self.reconfigurations if r.moved) or self.reconfigurations

    @property
    def count(self) -> str:
        """How many reconfigurations moved light, and out of how many where not all did: `42`, `3 of 42`."""
        moved, asked = sum(r.moved for r in self.reconfigurations), len(self.reconfigurations)
        return str(asked) if moved == asked else f"{moved} of {asked}"

    @property
    def total_s(self) -> float | None:
        """Median change of light, from demand in to last rule confirmed."""
        return middle(r.total_s for r in self.changes)

    def phase_s(self, phase: str) -> float | None:
        """Median of one phase over its changes of light."""
        return middle(r.phases[phase] for r in self.changes if phase in r.phases)


def baseline(judged: Iterable[Result]) -> Result | None:
    """The fabric without light that the others are measured against, if the run has one: that which blocks least."""
    without = (result for result in judged if BASELINE in (result.policy, result.name))
    return min(without, key=lambda result: blocking(result.wiring), default=None)


def overall(judged: Iterable[Result]) -> str:
    """The worst verdict among them; a run without results proves nothing and is invalid."""
    return max((result.verdict for result in judged), key=VERDICTS.index, default="invalid")


def middle(values: Iterable[float | None]) -> float | None:
    """The median of those there are."""
    there = [value for value in values if value is not None]
    return median(there) if there else None
