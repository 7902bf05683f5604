"""Sum of the outcomes of a fabric's iterations: its entry in the run's JSON."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import median
from typing import Final

import numpy as np

from moefabric.core.fabric_description import fabric_description
from moefabric.core.topology import Fabric, uplink_rate_bps
from moefabric.core.units import Scale, duration_text
from moefabric.results import parts
from moefabric.results.comparison import network_cost
from moefabric.results.model import EpsSummary, FabricResult, FidelityResult, Verdict, WiringSummary
from moefabric.results.records.records import IterationRun, RunFailures
from moefabric.results.verdict import reasons
from moefabric.results.verdict.failure_results import failure_results
from moefabric.results.verdict.iteration_outcome import IterationOutcome, joined_rows, outcomes_of
from moefabric.results.verdict.measurements import FabricMeasurements
from moefabric.results.verdict.reasons import RunFinding, RunSetting, with_remedies
from moefabric.results.verdict.verdict import judge, worst_verdict

_UNSCALED: Final = Scale()
_LEAST_LATE_NS: Final = 500_000
"""Lateness of links that degrades no run; a relay on an idle machine wakes up within 0.2 ms."""
_LATE_SHARE: Final = 0.05
"""Lateness that degrades no run, as a share of the links' delay."""


class FabricTotals:
    """The sum of the measurements of a fabric's iterations, and the verdict on it.

    Args:
        mtu: MTU of the NICs in bytes.
        paced: Whether flows are paced.
        cpu_idle: Idle shares of the machine besides those of the iterations.
        scale: Scale of the run, which remedies change.
    """

    def __init__(
        self,
        mtu: int,
        *,
        paced: bool = True,
        cpu_idle: Sequence[float] = (),
        scale: Scale = _UNSCALED,
        measured_control: bool = False,
    ) -> None:
        self._mtu, self._paced, self._scale = mtu, paced, scale
        self._measured_control = measured_control
        self._iterations = set[int]()
        self.measured = FabricMeasurements(cpu_idle=list(cpu_idle))

    def add(self, outcome: IterationOutcome) -> None:
        """Add the measurements of an iteration."""
        self._iterations.add(outcome.result.iteration)
        self.measured.add(outcome.measured)

    def fidelity(self, findings: Sequence[RunFinding] = ()) -> FidelityResult:
        """Judge all iterations, with further findings on the machine and the testbed."""
        setting = RunSetting(
            self._scale.bytes,
            self._scale.dilation,
            len(self._iterations),
            measured_control=self._measured_control,
        )
        return judge(self.measured, findings, mtu=self._mtu, paced=self._paced, setting=setting)


def summed_outcomes(
    wiring: WiringSummary,
    name: str,
    policy: str,
    outcomes: Sequence[IterationOutcome],
    findings: Sequence[RunFinding] = (),
    *,
    paced: bool = True,
    cpu_idle: Sequence[float] = (),
    measured_control: bool = False,
) -> FabricResult:
    """Return the result that the outcomes of a fabric's iterations add up to.

    Args:
        wiring: The fabric.
        name: Name of the fabric in the experiment.
        policy: Name of the policy that chose the circuits.
        outcomes: Outcomes of the iterations. Without any, the result is invalid.
        findings: Findings on the machine and the testbed.
        paced: Whether flows were paced.
        cpu_idle: Idle shares of the machine besides those of the outcomes.
        measured_control: Whether requests for circuits take the time that controllers need.
    """
    if not outcomes:
        nothing = FidelityResult(verdict=Verdict.PASS)
        result = FabricResult(fabric=name, policy=policy, wiring=wiring, fidelity=nothing)
        return with_findings(result, reasons.NO_ITERATION.judge())
    scale = Scale(wiring.bytes_scale or 1.0, wiring.dilation or 1.0)
    totals = FabricTotals(
        wiring.mtu or 1500,
        paced=paced,
        cpu_idle=cpu_idle,
        scale=scale,
        measured_control=measured_control,
    )
    for outcome in outcomes:
        totals.add(outcome)
    rows = joined_rows(outcomes)
    rows.pop("flows", None)
    return FabricResult(
        fabric=name,
        policy=policy,
        wiring=wiring,
        **rows,
        control_time=_control_time(rows["reconfigurations"]),
        harness_s=sum(outcome.result.harness_s for outcome in outcomes),
        timeline=_timeline(outcomes, wiring),
        integrity=totals.measured.integrity,
        fidelity=totals.fidelity(findings),
    )


def _timeline(
    outcomes: Sequence[IterationOutcome], wiring: WiringSummary
) -> list[parts.ServerInterval]:
    """Return the intervals of one iteration of all jobs, each from its own start, by time.

    The iteration is the last in which circuits changed, or else the last.
    """
    servers = [*chain.from_iterable(wiring.regions.values()), *wiring.backups]
    order = {server: place for place, server in enumerate(servers)}
    changed = [outcome for outcome in outcomes if outcome.changed_circuits]
    number = (changed or outcomes)[-1].result.iteration
    shown = (outcome.timeline for outcome in outcomes if outcome.result.iteration == number)
    return sorted(
        chain.from_iterable(shown), key=lambda one: (one.start_s, order.get(one.server, len(order)))
    )


def _control_time(changes: Sequence[parts.ReconfigurationResult]) -> parts.ControlTime:
    """Return the control time of the requests that succeeded."""
    moved_s, unchanged_s = list[float](), list[float]()
    for change in (change for change in changes if not change.error):
        moves = change.circuits_before != change.circuits_after
        (moved_s if moves else unchanged_s).append(change.control_s or 0.0)
    figures = {}
    if moved_s:
        figures["p50_s"], figures["p95_s"] = map(float, np.quantile(moved_s, (0.5, 0.95)))
    if unchanged_s:
        figures["unchanged_p50_s"] = float(np.quantile(unchanged_s, 0.5))
    return parts.ControlTime(count=len(moved_s), unchanged_count=len(unchanged_s), **figures)


def with_cost_and_failures(
    result: FabricResult, fabric: Fabric, failures: RunFailures, failed: Sequence[IterationRun]
) -> FabricResult:
    """Return a result with the cost of the network and the failures during the replay.

    Args:
        result: The sum of the outcomes.
        fabric: The fabric on which the workload was replayed.
        failures: Failures during the replay.
        failed: Records of the iterations with failures.
    """
    seconds = [iteration.measured_s or 0.0 for iteration in result.iterations]
    cost = network_cost(fabric, median(seconds) if seconds else None)
    return result.model_copy(
        update={"cost": cost, "failures": failure_results(fabric, failures, failed)}
    )


def fabric_result(
    fabric: Fabric,
    name: str,
    policy: str,
    runs: Sequence[IterationRun],
    *,
    cpu_idle: Sequence[float],
    remarks: Sequence[str],
    failures: RunFailures | None = None,
) -> FabricResult:
    """Convert the records of all iterations on one fabric.

    Args:
        fabric: The fabric on which the workload was replayed.
        name: Name of the fabric in the experiment.
        policy: Name of the policy that chose the circuits.
        runs: Records of the iterations.
        cpu_idle: Idle shares of the machine.
        remarks: Circumstances for which the run is degraded whatever was measured.
        failures: Failures during the replay. The collectives that they disturbed are reported
            but excluded from the verdict.
    """
    failures = failures or RunFailures()
    summed = summed_outcomes(
        wiring_summary(fabric),
        name,
        policy,
        outcomes_of(fabric, runs, failures),
        [*reasons.CIRCUMSTANCE.judge_each(remarks)],
        cpu_idle=cpu_idle,
    )
    return with_cost_and_failures(summed, fabric, failures, runs)


def with_findings(result: FabricResult, findings: Iterable[RunFinding]) -> FabricResult:
    """Return a result with further findings, which are its first reasons."""
    if not (listed := list(findings)):
        return result
    fidelity, wiring = result.fidelity, result.wiring
    iterations = len({row.iteration for row in result.iterations})
    setting = RunSetting(wiring.bytes_scale or 1.0, wiring.dilation or 1.0, iterations or 1)
    update = {
        "verdict": worst_verdict([*(finding.verdict for finding in listed), fidelity.verdict]),
        "reasons": [*(finding.text for finding in listed), *fidelity.reasons],
        "findings": [*with_remedies(listed, setting), *fidelity.findings],
    }
    return result.model_copy(update={"fidelity": fidelity.model_copy(update=update)})


def control_time_findings(took_s: Sequence[float], control_s: float | None) -> Iterator[RunFinding]:
    """Yield the finding on controllers that needed longer than `control_s` (model seconds)."""
    late_s = [s for s in took_s if control_s is not None and s > control_s + 1e-9]
    allowed_ms, most_ms = 1e3 * (control_s or 0.0), 1e3 * max(late_s, default=0.0)
    yield from reasons.SLOW_CONTROL.judge(
        len(late_s), count=len(took_s), allowed_ms=allowed_ms, most_ms=most_ms
    )


def uncounted_findings(sent: Sequence[parts.CollectiveResult]) -> Iterator[RunFinding]:
    """Yield the finding on a fabric none of whose collectives and transfers ports have counted."""
    if sent and all(run.bytes_by_light is run.bytes_by_eps is None for run in sent):
        yield from reasons.UNCOUNTED.judge()


def lateness_findings(fabric: Fabric, lateness: parts.LinkLateness) -> Iterator[RunFinding]:
    """Yield the findings on a relay of links that was late."""
    link = fabric.eps_link
    delay_ns = fabric.scale.wall_ns(link.behaviour.delay_ns) if link is not None else 0
    bound_ns = max(_LEAST_LATE_NS, _LATE_SHARE * delay_ns)
    yield from reasons.LATE_LINKS.judge(
        lateness.p99_ns - bound_ns,
        late=duration_text(lateness.p99_ns),
        bound=duration_text(bound_ns),
        most=duration_text(lateness.max_ns),
    )
    yield from reasons.LATE_RELAY.judge(lateness.overflows)


def wiring_summary(fabric: Fabric) -> WiringSummary:
    """Summarise the servers, NICs, switches and scale of a fabric."""
    return WiringSummary(
        servers=len(fabric.primary_servers),
        regions={region: list(servers) for region, servers in fabric.ep_groups.items()},
        backups=list(fabric.backup_servers),
        gpus_per_server=fabric.gpus,
        optical_nics=fabric.optical,
        electrical_nics=fabric.electrical,
        kind=fabric_description(fabric),
        panel=fabric.patch_panel,
        eps=_eps_summary(fabric),
        nic_rate_bps=fabric.nic_rate_bps,
        own_nic_rates_bps=dict(fabric.own_rates_bps),
        emulated_nic_rate_bps=fabric.scale.rate_bps(fabric.nic_rate_bps),
        bytes_scale=fabric.scale.bytes,
        dilation=fabric.scale.dilation,
        mtu=fabric.mtu,
    )


def _eps_summary(fabric: Fabric) -> EpsSummary | None:
    if fabric.eps is None or not fabric.leaves:
        return None
    nics = {leaf: fabric.eps_wiring.nics_under(leaf) for leaf in fabric.leaves}
    return EpsSummary(
        kind=str(fabric.eps.kind),
        leaves={leaf: [str(nic) for nic in listed] for leaf, listed in nics.items()},
        spines=list(fabric.spines),
        oversubscription=fabric.eps.oversubscription,
        uplink_rate_bps=uplink_rate_bps(fabric),
    )
