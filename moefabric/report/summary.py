"""A fabric's result with figures derived from it, and the columns of tables that show them.

Times are model seconds and sizes are the model's bytes. A figure that a run lacks is None.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final

from moefabric.report import formatting
from moefabric.report.formatting import MISSING, number, percentage, printable, ratio, seconds
from moefabric.results import parts
from moefabric.results.comparison import baseline, joined_phases
from moefabric.results.model import (
    FabricPrediction,
    FabricResult,
    RunResult,
    Verdict,
    VerdictFinding,
)
from moefabric.results.statistics import median_of

PHASES = ("demand", "plan", "divert", "command", "settle", "verify", "admit")
"""Phases of a reconfiguration in their order; `<phase>_s` in the JSON."""

_COMPARED: Final = ("vs_eps", "predicted_vs_eps", "perf_per_dollar_vs_eps")
"""Columns that compare a fabric with the baseline."""

Text = Callable[[float | None], str]


@dataclass(frozen=True)
class FabricSummary:
    """Result of a fabric with its figures, which are medians over the run.

    Example:
        The first fabric of a run::

            fabric = summaries(run)[0]
            fabric["iteration_s"], fabric.text("optical_share")  # (2.682, '81.0 %')

    Attributes:
        base: The summary of the run's baseline, if it has one.
    """

    result: FabricResult
    base: "FabricSummary | None" = None

    def __getitem__(self, column: str) -> float | None:
        """Return a figure by the name of its column.

        Raises:
            KeyError: If there is no such column, by which templates tell columns from attributes.
        """
        known = COLUMNS[column]
        if not (stored := self.result.figures):
            return known.measured(self)
        return stored.get(column) if self.is_comparable or column not in _COMPARED else None

    def text(self, column: str) -> str:
        """Return a figure as tables show it."""
        return COLUMNS[column].text(self[column])

    @property
    def name(self) -> str:
        """Name of the fabric, printable."""
        return printable(self.result.fabric)

    @property
    def verdict(self) -> Verdict:
        """Verdict on the fabric's measurements."""
        return self.result.fidelity.verdict

    @property
    def is_invalid(self) -> bool:
        """True if the fabric's measurements can't be trusted, and mustn't be compared."""
        return self.verdict is Verdict.INVALID

    @property
    def label(self) -> str:
        """Name of the fabric in charts, which mark an invalid one."""
        return f"{self.name} (invalid)" if self.is_invalid else self.name

    @property
    def is_comparable(self) -> bool:
        """True if neither the fabric nor the run's baseline is invalid."""
        return not self.is_invalid and (self.base is None or not self.base.is_invalid)

    @property
    def iteration_vs_eps(self) -> float | None:
        """Iteration time relative to the baseline's."""
        if self.base is None or not self.is_comparable:
            return None
        return _quotient(self["iteration_s"], self.base["iteration_s"])

    @property
    def reasons(self) -> list[str]:
        """Reasons for a verdict other than a pass, in words."""
        return [finding.text for finding in self.findings]

    @property
    def findings(self) -> list[VerdictFinding]:
        """Reasons for a verdict other than a pass, each with its own verdict and remedy."""
        nothing = VerdictFinding(verdict=self.verdict, text="no reason was given")
        return self.result.fidelity.explanations or [nothing]

    @property
    def is_baseline(self) -> bool:
        """True if this fabric is the run's baseline."""
        return self.base is not None and self.base.result is self.result

    @cached_property
    def all_to_alls(self) -> list[parts.CollectiveResult]:
        """Dispatches and combines among the collectives, each with all its phases."""
        kinds = ("dispatch", "combine")
        return joined_phases(c for c in self.result.collectives if c.kind in kinds)

    @cached_property
    def counted(self) -> list[parts.CollectiveResult]:
        """The collectives whose bytes were counted at ports."""
        joined = joined_phases(self.result.collectives)
        return [c for c in joined if None not in (c.bytes_by_light, c.bytes_by_eps)]

    @property
    def bytes_by_light(self) -> int:
        """Counted bytes of collectives that crossed an OCS."""
        return sum(c.bytes_by_light or 0 for c in self.counted)

    @property
    def bytes_by_eps(self) -> int:
        """Counted bytes of collectives that crossed the EPS."""
        return sum(c.bytes_by_eps or 0 for c in self.counted)

    @cached_property
    def regions(self) -> dict[str, list[str]]:
        """Servers of each region; empty if there is only one region."""
        regions = self.result.wiring.regions
        return regions if len(regions) > 1 else {}

    @property
    def first(self) -> parts.FirstAllToAll:
        """The first all-to-alls of each layer."""
        return self.result.first_all_to_all

    @cached_property
    def first_region(self) -> "FabricSummary":
        """The fabric with the servers and circuits of its first region only."""
        if not self.regions:
            return self
        servers = next(iter(self.regions.values()))
        wiring = self.result.wiring.model_copy(update={"servers": len(servers)})
        update = {"wiring": wiring, "circuits": self.circuits_of(servers)}
        return FabricSummary(self.result.model_copy(update=update), self.base)

    def circuits_of(self, servers: Sequence[str]) -> list[tuple[str, str]]:
        """Return the circuits that begin at some servers."""
        return [ends for ends in self.result.circuits if ends[0].split("/")[0] in servers]

    @cached_property
    def timeline(self) -> list[parts.ServerInterval]:
        """Intervals of one iteration, which begins at 0."""
        intervals = [i for i in self.result.timeline if i.end_s >= i.start_s]
        begin_s = min((i.start_s for i in intervals), default=0.0)
        return [
            i.model_copy(update={"start_s": i.start_s - begin_s, "end_s": i.end_s - begin_s})
            for i in intervals
        ]

    @property
    def demand(self) -> list[list[float]]:
        """Demand matrix; empty if the run has none that is square."""
        matrix = self.result.demand
        return matrix if all(len(row) == len(matrix) for row in matrix) else []

    @property
    def changes(self) -> list[parts.ReconfigurationResult]:
        """Reconfigurations that changed circuits, or all of them if none did."""
        reconfigurations = self.result.reconfigurations
        return [r for r in reconfigurations if changes_circuits(r)] or reconfigurations

    @property
    def change_count(self) -> str:
        """Number of reconfigurations that changed circuits: `42`, or `3 of 42` if not all did."""
        changed, total = (int(self[name] or 0) for name in ("moves", "reconfigurations"))
        return str(total) if changed == total else f"{changed} of {total}"

    def phase_s(self, phase: str) -> float | None:
        """Return the median duration of one phase over the changes of circuits."""
        return median_of(phases_s(r).get(phase) for r in self.changes)

    @property
    def first_policy(self) -> str:
        """Policy of the first all-to-alls (`dispatch_light`); a dash if circuits never change.

        If a split is not computed from its own demand, this is the name of the other demand.
        """
        known, error = self.result.split_demand, self.result.demand_error
        if known != "known" or error:
            wrong = f", {percentage(error)} wrong" if error else ""
            return f"split: {printable(known)}{wrong}"
        if not self.result.reconfigurations:
            return MISSING
        return printable(self.result.first_all_to_all.policy or "block")


# --- columns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    r"""A figure of a fabric in tables, frames and sweeps.

    Attributes:
        heading: Its name in tables; `\n` is a good place to break it.
        title: Its name in words.
        text: Format of its values.
        measured: Its value in a run.
        predicted: Its value in a prediction; None if predictions don't have it.
        below: Name of the column that tables show in small letters below it.
    """

    heading: str
    title: str
    text: Text
    measured: "Figure"
    predicted: Callable[[FabricPrediction], float | None] | None = None
    below: str = ""


Figure = Callable[[FabricSummary], float | None]


def _iterations(field: str) -> Figure:
    return lambda f: median_of(getattr(one, field) for one in f.result.iterations)


def _all_to_alls(field: str) -> Figure:
    return lambda f: median_of(getattr(one, field) for one in f.all_to_alls)


def _share(part: str, whole: str) -> Figure:
    return lambda f: _quotient(f[part], f[whole])


def _relative(kind: str, column: str) -> Figure:
    """Return a time relative to the baseline's: as the run reports it, or from the medians.

    There is none if one of both fabrics is invalid.
    """

    def relative(fabric: FabricSummary) -> float | None:
        if not fabric.is_comparable:
            return None
        reported: float | None = getattr(fabric.result.ratios, f"{kind}_vs_eps")
        if reported is not None or fabric.base is None:
            return reported
        return _quotient(fabric[column], fabric.base[column])

    return relative


def _iteration_text(value: float | None) -> str:
    return formatting.seconds(value, 4)


def _optical_share(fabric: FabricSummary) -> float | None:
    return _quotient(fabric.bytes_by_light, fabric.bytes_by_light + fabric.bytes_by_eps)


def _planned_share(fabric: FabricSummary) -> float | None:
    light = sum(one.bytes_planned_by_light for one in fabric.result.collectives)
    return _quotient(light, light + sum(c.bytes_planned_by_eps for c in fabric.result.collectives))


def _dark_s(fabric: FabricSummary) -> float | None:
    """Return the dark time of a region in an iteration, as a mean; None if there was none."""
    parts = max(1, len(fabric.result.iterations)) * max(1, len(fabric.regions))
    return sum(c.dark_s for c in fabric.result.collectives) / parts or None


def _per_million_usd(fabric: FabricSummary) -> float | None:
    usd, iteration_s = fabric.result.cost.network_usd, fabric["iteration_s"]
    return 1e6 / (iteration_s * usd) if iteration_s and usd else None


def _cost(heading: str, title: str, text: Text, field: str) -> Column:
    """Return the column of a cost, which predictions have, too."""
    return Column(
        heading, title, text, attrgetter(f"result.cost.{field}"), attrgetter(f"cost.{field}")
    )


COLUMNS: Final[Mapping[str, Column]] = {
    "iteration_s": Column(
        "iteration", "Iteration time", _iteration_text, _iterations("measured_s"),
        attrgetter("iteration_s"), "predicted_iteration_s",
    ),
    "predicted_iteration_s": Column(
        "predicted", "Iteration time, as predicted for a run", _iteration_text,
        _iterations("predicted_s"),
    ),
    "compute_s": Column(
        "compute", "Computation", seconds, _iterations("compute_s"), attrgetter("compute_s")
    ),
    "exposed_comm_s": Column(
        "exposed\ncomm", "Exposed communication", seconds, _iterations("exposed_comm_s"),
        attrgetter("exposed_comm_s"), "exposed_share",
    ),
    "exposed_share": Column(
        "exposed share", "Exposed communication as a share of the iteration", percentage,
        _share("exposed_comm_s", "iteration_s"),
    ),
    "all_to_all_s": Column(
        "all-to-all", "All-to-all time", seconds, _all_to_alls("measured_s"),
        attrgetter("all_to_all_s"), "predicted_all_to_all_s",
    ),
    "predicted_all_to_all_s": Column(
        "predicted", "All-to-all time, as predicted for a run", seconds, _all_to_alls("predicted_s")
    ),
    "first_all_to_all_s": Column(
        "first\nall-to-all", "Exposed time of a layer's first all-to-all, median", seconds,
        lambda f: f.first.exposed_s, below="predicted_first_all_to_all_s",
    ),
    "predicted_first_all_to_all_s": Column(
        "predicted", "Exposed time of a layer's first all-to-all, as predicted for a run", seconds,
        lambda f: f.first.predicted_exposed_s,
    ),
    "error": Column("error", "Error of all-to-alls", formatting.deviation, _all_to_alls("error")),
    "vs_eps": Column(
        "vs EPS", "All-to-all time relative to EPS", ratio, _relative("measured", "all_to_all_s"),
        attrgetter("all_to_all_vs_eps"), "predicted_vs_eps",
    ),
    "predicted_vs_eps": Column(
        "predicted", "All-to-all time relative to EPS, as predicted for a run", ratio,
        _relative("predicted", "predicted_all_to_all_s"),
    ),
    "optical_share": Column(
        "optical\nshare", "Optical share", percentage, _optical_share, attrgetter("light_share"),
        "planned_optical_share",
    ),
    "planned_optical_share": Column(
        "planned", "Optical share as planned", percentage, _planned_share
    ),
    "reconfigurations": Column(
        "reconfigurations", "Reconfigurations", formatting.count,
        lambda f: len(f.result.reconfigurations),
    ),
    "moves": Column(
        "moves", "Reconfigurations that changed circuits", formatting.count,
        lambda f: sum(map(changes_circuits, f.result.reconfigurations)),
        attrgetter("reconfigurations"),
    ),
    "reconfiguration_s": Column(
        "reconfig.\nmedian", "Reconfiguration time", seconds,
        lambda f: median_of(map(total_s, f.changes)),
    ),
    "dark_s": Column("dark", "Dark time of an iteration", seconds, _dark_s),
    "network_usd": _cost("network", "Price of the network", formatting.usd, "network_usd"),
    "performance_per_dollar": _cost(
        "it/s per $", "Iterations per second and dollar", number, "performance_per_dollar"
    ),
    "performance_per_million_usd": Column(
        "it/s per M$", "Iterations per second and million dollars", number, _per_million_usd
    ),
    "perf_per_dollar_vs_eps": Column(
        "perf/$ vs EPS", "Performance per dollar relative to EPS", ratio,
        lambda f: f.result.cost.perf_per_dollar_vs_eps if f.is_comparable else None,
        attrgetter("cost.perf_per_dollar_vs_eps"),
    ),
}  # fmt: skip
"""Columns by their names in frames and sweeps."""


# --- figures -------------------------------------------------------------------------------------


def changes_circuits(reconfiguration: parts.ReconfigurationResult) -> bool:
    """Return whether circuits changed; they did if the reconfiguration names no circuits."""
    before, after = reconfiguration.circuits_before, reconfiguration.circuits_after
    return before is None or after is None or sorted(before) != sorted(after)


def phases_s(reconfiguration: parts.ReconfigurationResult) -> dict[str, float]:
    """Return the duration of each phase that the reconfiguration has."""
    durations = {phase: getattr(reconfiguration, f"{phase}_s") for phase in PHASES}
    return {phase: seconds for phase, seconds in durations.items() if seconds is not None}


def total_s(reconfiguration: parts.ReconfigurationResult) -> float:
    """Return the duration of all phases."""
    total = reconfiguration.total_s
    return sum(phases_s(reconfiguration).values()) if total is None else total


def control_s(reconfiguration: parts.ReconfigurationResult) -> float:
    """Return the duration of all phases but settling: the control plane's own time."""
    return sum(seconds for phase, seconds in phases_s(reconfiguration).items() if phase != "settle")


def summaries(run: RunResult) -> list[FabricSummary]:
    """Summarise every fabric of a run, in the run's order."""
    base = baseline(run.results)
    summary = FabricSummary(base) if base else None
    return [FabricSummary(result, summary) for result in run.results]


def with_first_all_to_alls(fabrics: Sequence[FabricSummary]) -> list[FabricSummary]:
    """Return the fabrics whose first all-to-alls are compared.

    There are none if all wait for light (`block`): then there is nothing to compare.
    """
    shown = [f for f in fabrics if f.result.first_all_to_all.exposed_s is not None]
    return shown if any(f.first_policy not in ("block", MISSING) for f in shown) else []


def overall_verdict(run: RunResult) -> Verdict:
    """Return the worst verdict of a run's fabrics; a run without results is invalid."""
    verdicts = (result.fidelity.verdict for result in run.results)
    return max(verdicts, key=list(Verdict).index, default=Verdict.INVALID)


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
