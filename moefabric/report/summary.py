"""Figures that the report derives from a fabric's result: medians, shares and ratios.

Times are model seconds and sizes are the model's bytes. A figure that a run lacks is None.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from moefabric.report.formatting import MISSING, percentage, printable
from moefabric.runner.comparison import baseline, joined_phases
from moefabric.runner.result_model import FabricResult, RunResult, Verdict
from moefabric.runner.result_parts import (
    CollectiveResult,
    HybridResult,
    QueueDrops,
    ReconfigurationResult,
    ServerInterval,
)

PHASES = ("demand", "plan", "divert", "command", "settle", "verify", "admit")
"""Phases of a reconfiguration in their order; `<phase>_s` in the JSON."""
_SHOWN_PORTS = 3


@dataclass(frozen=True)
class FabricSummary:
    """One fabric's result with the figures derived from it; medians are over the run.

    `base` is the summary of the run's baseline, if it has one.
    """

    result: FabricResult
    base: "FabricSummary | None" = None

    @property
    def name(self) -> str:
        """Name of the fabric, printable."""
        return printable(self.result.fabric)

    @property
    def verdict(self) -> Verdict:
        """Verdict on the fabric's measurements."""
        return self.result.fidelity.verdict

    @property
    def reasons(self) -> list[str]:
        """Reasons for a verdict other than a pass."""
        return self.result.fidelity.reasons or ["no reason was given"]

    @property
    def drops(self) -> str:
        """Packets dropped by queues of limited room; empty if room is unlimited."""
        return queue_text(self.result.queues) if self.result.queues is not None else ""

    @property
    def is_baseline(self) -> bool:
        """Whether this fabric is the run's baseline."""
        return self.base is not None and self.base.result is self.result

    @property
    def iteration_s(self) -> float | None:
        """Median duration of an iteration."""
        return median_of(i.measured_s for i in self.result.iterations)

    @property
    def predicted_iteration_s(self) -> float | None:
        """Median duration of an iteration as predicted."""
        return median_of(i.predicted_s for i in self.result.iterations)

    @property
    def compute_s(self) -> float | None:
        """Median computation time of an iteration."""
        return median_of(i.compute_s for i in self.result.iterations)

    @property
    def exposed_s(self) -> float | None:
        """Median exposed communication of an iteration."""
        return median_of(i.exposed_comm_s for i in self.result.iterations)

    @property
    def exposed_share(self) -> float | None:
        """Exposed communication as a share of the iteration."""
        return _quotient(self.exposed_s, self.iteration_s)

    @cached_property
    def all_to_alls(self) -> list[CollectiveResult]:
        """Dispatches and combines among the collectives, each with all its phases."""
        kinds = ("dispatch", "combine")
        return joined_phases(c for c in self.result.collectives if c.kind in kinds)

    @property
    def measured_s(self) -> float | None:
        """Median completion time of the all-to-alls."""
        return median_of(a.measured_s for a in self.all_to_alls)

    @property
    def predicted_s(self) -> float | None:
        """Median completion time of the all-to-alls as predicted."""
        return median_of(a.predicted_s for a in self.all_to_alls)

    @property
    def error(self) -> float | None:
        """Median of the signed errors of the all-to-alls."""
        return median_of(a.error for a in self.all_to_alls)

    @property
    def measured_ratio(self) -> float | None:
        """Completion time of the all-to-alls relative to the baseline's."""
        return self._ratio(self.result.ratios.measured_vs_eps, lambda s: s.measured_s)

    @property
    def predicted_ratio(self) -> float | None:
        """Completion time of the all-to-alls as predicted, relative to the baseline's."""
        return self._ratio(self.result.ratios.predicted_vs_eps, lambda s: s.predicted_s)

    def _ratio(
        self, reported: float | None, median_s: "Callable[[FabricSummary], float | None]"
    ) -> float | None:
        if reported is not None or self.base is None:
            return reported
        return _quotient(median_s(self), median_s(self.base))

    @cached_property
    def counted(self) -> list[CollectiveResult]:
        """The collectives whose bytes were counted at ports."""
        return [
            collective
            for collective in joined_phases(self.result.collectives)
            if None not in (collective.bytes_by_light, collective.bytes_by_eps)
        ]

    @property
    def bytes_by_light(self) -> int:
        """Counted bytes of collectives that crossed an OCS."""
        return sum(c.bytes_by_light or 0 for c in self.counted)

    @property
    def bytes_by_eps(self) -> int:
        """Counted bytes of collectives that crossed the EPS."""
        return sum(c.bytes_by_eps or 0 for c in self.counted)

    @property
    def optical_share(self) -> float | None:
        """Bytes that crossed an OCS as a share of all counted bytes; None if nobody counted."""
        return _quotient(self.bytes_by_light, self.bytes_by_light + self.bytes_by_eps)

    @property
    def planned_optical_share(self) -> float | None:
        """Bytes planned over an OCS as a share of all bytes."""
        light = sum(c.bytes_planned_by_light for c in self.result.collectives)
        return _quotient(
            light, light + sum(c.bytes_planned_by_eps for c in self.result.collectives)
        )

    @property
    def dark_s(self) -> float | None:
        """Dark time of a region in an iteration, as a mean; None if there was none."""
        parts = max(1, len(self.result.iterations)) * max(1, len(self.regions))
        return sum(c.dark_s for c in self.result.collectives) / parts or None

    @cached_property
    def regions(self) -> dict[str, list[str]]:
        """Servers of each region; empty if there is only one region."""
        regions = self.result.wiring.regions
        return regions if len(regions) > 1 else {}

    @cached_property
    def timeline(self) -> list[ServerInterval]:
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
    def changes(self) -> list[ReconfigurationResult]:
        """Reconfigurations that changed circuits, or all of them if none did."""
        reconfigurations = self.result.reconfigurations
        return [r for r in reconfigurations if changes_circuits(r)] or reconfigurations

    @property
    def change_count(self) -> str:
        """Number of reconfigurations that changed circuits: `42`, or `3 of 42` if not all did."""
        changed = sum(changes_circuits(r) for r in self.result.reconfigurations)
        total = len(self.result.reconfigurations)
        return str(total) if changed == total else f"{changed} of {total}"

    @property
    def total_s(self) -> float | None:
        """Median duration of a change of circuits, from demand to the last rule confirmed."""
        return median_of(total_s(r) for r in self.changes)

    def phase_s(self, phase: str) -> float | None:
        """Return the median duration of one phase over the changes of circuits."""
        return median_of(phases_s(r).get(phase) for r in self.changes)

    @property
    def first_policy(self) -> str:
        """How the first all-to-alls get light (`dispatch_light`); a dash if it never changes.

        It names the demand of their split, too, unless that is their own.
        """
        known, error = self.result.split_demand, self.result.demand_error
        if known != "known" or error:
            wrong = f", {percentage(error)} wrong" if error else ""
            return f"split: {printable(known)}{wrong}"
        if not self.result.reconfigurations:
            return MISSING
        return printable(self.result.first_all_to_all.policy or "block")

    @property
    def iterations_per_million_usd(self) -> float | None:
        """Iterations per second for each million dollars of network."""
        usd = self.result.cost.network_usd
        return 1e6 / (self.iteration_s * usd) if self.iteration_s and usd else None


def changes_circuits(reconfiguration: ReconfigurationResult) -> bool:
    """Whether circuits changed; a reconfiguration that doesn't name its circuits counts as one."""
    before, after = reconfiguration.circuits_before, reconfiguration.circuits_after
    return before is None or after is None or sorted(before) != sorted(after)


def phases_s(reconfiguration: ReconfigurationResult) -> dict[str, float]:
    """Return the duration of each phase that the reconfiguration has."""
    durations = {phase: getattr(reconfiguration, f"{phase}_s") for phase in PHASES}
    return {phase: seconds for phase, seconds in durations.items() if seconds is not None}


def total_s(reconfiguration: ReconfigurationResult) -> float:
    """Return the duration of all phases."""
    total = reconfiguration.total_s
    return sum(phases_s(reconfiguration).values()) if total is None else total


def control_s(reconfiguration: ReconfigurationResult) -> float:
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


def remarks(fabric: FabricSummary) -> Iterator[str]:
    """Yield lines about what was modelled, about spines and about queues, as far as there are."""
    result = fabric.result
    if result.hybrid is not None:
        yield hybrid_text(result.hybrid)
    if result.spines is not None:
        yield spine_text(result)
    if fabric.drops:
        yield fabric.drops


def spine_text(result: FabricResult) -> str:
    """Return a line such as `61% of all bytes cross spines (dispatch 44%, forward transfer 100%)`.

    It names what was counted at the uplinks, too. The fabric has spines.
    """
    assert result.spines is not None
    kinds: dict[str, list[int]] = {}
    for sent in (*result.collectives, *result.transfers):
        total = kinds.setdefault(sent.kind, [0, 0])
        total[0] += sent.bytes_planned_by_spines
        total[1] += sent.bytes
    parts = ", ".join(f"{printable(k)} {percentage(c / max(1, b))}" for k, (c, b) in kinds.items())
    line = f"{percentage(result.spines.share)} of all bytes cross spines"
    if kinds:
        line += f" ({parts})"
    counted, planned = result.spines.counted_bytes, result.spines.bytes
    if counted is not None and planned:
        line += f"; the uplinks counted {counted / planned:.2%} of them"
    return line


def hybrid_text(hybrid: HybridResult) -> str:
    """Return a line such as `r1 is emulated in a cluster of 8 regions and 256 GPUs`.

    It says what was modelled, and whether background flows kept to the model's rates.
    """
    names = ", ".join(map(printable, hybrid.emulated))
    verb = "is" if len(hybrid.emulated) == 1 else "are"
    regions = f"{hybrid.regions:,} regions, {hybrid.servers:,} servers and {hybrid.gpus:,} GPUs"
    line = f"{names} {verb} emulated in a modelled cluster of {regions}"
    if hybrid.remark:
        line += f"; {printable(hybrid.remark)}"
    if hybrid.background == "none":
        return f"{line}; no background flows"
    flows = f"{hybrid.flows:,} background flows ({printable(hybrid.background)})"
    line += f"; {flows} between {len(hybrid.peers)} servers that stand for the others"
    if hybrid.rate_error_p50 is not None and hybrid.rate_error_p5 is not None:
        p50, p5 = hybrid.rate_error_p50, hybrid.rate_error_p5
        line += f", at the model's rates {p50:+.1%} (median) and {p5:+.1%} (5th percentile)"
    return line


def queue_text(queues: QueueDrops) -> str:
    """Return a line such as `queues of 100 packets dropped 12 of 4,000 packets, 9 at s0/e0`."""
    if not queues.drops:
        return f"queues of {printable(queues.limit)} dropped no packet"
    offered = queues.packets + queues.drops
    share = f"{queues.drops:,} of {offered:,} packets ({queues.drops / offered:.2%})"
    worst = "; ".join(f"{p.drops:,} at {printable(p.port)}" for p in queues.ports[:_SHOWN_PORTS])
    return f"queues of {printable(queues.limit)} dropped {share}: {worst}"


def overall_verdict(run: RunResult) -> Verdict:
    """Return the worst verdict of a run's fabrics; a run without results is invalid."""
    verdicts = (result.fidelity.verdict for result in run.results)
    return max(verdicts, key=list(Verdict).index, default=Verdict.INVALID)


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the finite values."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return median(finite) if finite else None


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
