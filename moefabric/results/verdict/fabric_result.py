"""Sum of the outcomes of a fabric's iterations: its entry in the run's JSON."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from statistics import median

import numpy as np

from moefabric.core.fabric_description import fabric_description
from moefabric.core.failures import failures_json
from moefabric.core.rates import uplink_rate_bps
from moefabric.core.topology import Fabric
from moefabric.results.comparison import network_cost
from moefabric.results.model import EpsSummary, FabricResult, FidelityResult, Verdict, WiringSummary
from moefabric.results.parts import ControlTime, FailureResult, ServerInterval
from moefabric.results.records.records import IterationRun, RunFailures
from moefabric.results.verdict import reasons
from moefabric.results.verdict.iteration_outcome import (
    IterationOutcome,
    model_seconds,
    outcomes_of,
    server_interval,
)
from moefabric.results.verdict.measurements import FabricMeasurements
from moefabric.results.verdict.reasons import RunFinding
from moefabric.results.verdict.verdict import judge, worst_verdict


class FabricTotals:
    """The sum of a fabric's iterations, and the verdict on it; the iterations aren't kept.

    Args:
        mtu: MTU of the NICs in bytes.
        servers: All servers, in the order of the timeline.
        paced: Whether flows are paced.
        cpu_idle: Idle shares of the machine besides those of the iterations.
    """

    def __init__(
        self,
        mtu: int,
        servers: Iterable[str],
        *,
        paced: bool = True,
        cpu_idle: Sequence[float] = (),
    ) -> None:
        self._mtu, self._paced = mtu, paced
        self._order = {server: place for place, server in enumerate(servers)}
        self.measured, self._quiet = (FabricMeasurements(cpu_idle=list(cpu_idle)) for _ in range(2))
        self._changed_s, self._unchanged_s = array("d"), array("d")
        self._timelines: list[tuple[bool, int, list[ServerInterval]]] = []

    def add(self, outcome: IterationOutcome) -> None:
        """Add the outcome of an iteration."""
        self.measured.add(outcome.measured)
        self._quiet.add(outcome.quiet or outcome.measured)
        for change in outcome.reconfigurations:
            if not change.error:
                changed = change.circuits_before != change.circuits_after
                seconds = self._changed_s if changed else self._unchanged_s
                seconds.append(change.control_s or 0.0)
        self._keep_timeline(outcome)

    def _keep_timeline(self, outcome: IterationOutcome) -> None:
        """Keep the timelines of the last iteration, and of the last in which circuits changed."""
        number = outcome.result.iteration
        self._timelines.append((outcome.changed_circuits, number, outcome.timeline))
        changed = [n for moves, n, _ in self._timelines if moves]
        shown = {self._timelines[-1][1], *changed[-1:]}
        self._timelines = [one for one in self._timelines if one[1] in shown]

    @property
    def timeline(self) -> list[ServerInterval]:
        """Intervals of one iteration of all jobs, each job from its own start, sorted by time.

        The iteration is the last in which circuits changed, or else the last.
        """
        if not self._timelines:
            return []
        changed = [number for moves, number, _ in self._timelines if moves]
        number = changed[-1] if changed else self._timelines[-1][1]
        spans = [one for _, n, timeline in self._timelines if n == number for one in timeline]
        last = len(self._order)
        return sorted(spans, key=lambda one: (one.start_s, self._order.get(one.server, last)))

    @property
    def control_time(self) -> ControlTime:
        """The control time of the requests that succeeded."""
        changed, unchanged = self._changed_s, self._unchanged_s
        result = ControlTime(count=len(changed), unchanged_count=len(unchanged))
        if changed:
            p50, p95 = (float(np.quantile(changed, q)) for q in (0.5, 0.95))
            result = result.model_copy(update={"p50_s": p50, "p95_s": p95})
        if unchanged:
            p50 = float(np.quantile(unchanged, 0.5))
            result = result.model_copy(update={"unchanged_p50_s": p50})
        return result

    def fidelity(
        self, findings: Sequence[RunFinding] = (), *, failures: bool = False
    ) -> FidelityResult:
        """Judge all collectives or, if that verdict is better, those without CPU steal.

        A hypervisor that takes the CPU may delay a collective, but needn't.

        Args:
            findings: Findings on the machine and the testbed.
            failures: Whether failures were injected.
        """
        verdict_on = partial(
            judge, findings=findings, mtu=self._mtu, paced=self._paced, failures=failures
        )
        judged = verdict_on(self.measured)
        if judged.verdict is not Verdict.PASS:
            quiet = verdict_on(self._quiet)
            if worst_verdict((judged.verdict, quiet.verdict)) is judged.verdict:
                return quiet
        return judged


def summed_outcomes(
    wiring: WiringSummary,
    name: str,
    policy: str,
    outcomes: Iterable[IterationOutcome],
    findings: Sequence[RunFinding] = (),
    *,
    paced: bool = True,
    failures: bool = False,
    cpu_idle: Sequence[float] = (),
) -> FabricResult:
    """Return the result that the outcomes of a fabric's iterations add up to.

    Args:
        wiring: The fabric.
        name: Name of the fabric in the experiment.
        policy: Name of the policy that chose the circuits.
        outcomes: Outcomes of the iterations. Without any, the result is invalid.
        findings: Findings on the machine and the testbed.
        paced: Whether flows were paced.
        failures: Whether failures were injected.
        cpu_idle: Idle shares of the machine besides those of the outcomes.
    """
    servers = [server for group in wiring.regions.values() for server in group] + wiring.backups
    totals = FabricTotals(wiring.mtu or 1500, servers, paced=paced, cpu_idle=cpu_idle)
    listed = list[IterationOutcome]()
    for outcome in outcomes:
        totals.add(outcome)
        listed.append(outcome.without_measurements())
    if not listed:
        nothing = FidelityResult(verdict=Verdict.PASS)
        result = FabricResult(fabric=name, policy=policy, wiring=wiring, fidelity=nothing)
        return with_findings(result, reasons.NO_ITERATION.judge())
    return FabricResult(
        fabric=name,
        policy=policy,
        wiring=wiring,
        iterations=[outcome.result for outcome in listed],
        collectives=[one for outcome in listed for one in outcome.collectives],
        transfers=[one for outcome in listed for one in outcome.transfers],
        reconfigurations=[one for outcome in listed for one in outcome.reconfigurations],
        control_time=totals.control_time,
        harness_s=sum(outcome.result.harness_s for outcome in listed),
        timeline=totals.timeline,
        integrity=totals.measured.integrity,
        fidelity=totals.fidelity(findings, failures=failures),
    )


def summed_result(
    fabric: Fabric,
    name: str,
    policy: str,
    outcomes: Iterable[IterationOutcome],
    *,
    remarks: Iterable[str] = (),
    findings: Iterable[RunFinding] = (),
    failures: RunFailures | None = None,
    failed: Sequence[IterationRun] = (),
    cpu_idle: Sequence[float] = (),
    paced: bool = True,
) -> FabricResult:
    """Return the result of a fabric, with its costs and its failures.

    Args:
        fabric: The fabric on which the workload was replayed.
        name: Name of the fabric in the experiment.
        policy: Name of the policy that chose the circuits.
        outcomes: Outcomes of the iterations.
        remarks: Circumstances for which the run is degraded whatever was measured.
        findings: Findings on the machine and the testbed.
        failures: Failures during the replay. The collectives that they disturbed are reported
            but excluded from the verdict.
        failed: Records of the iterations with failures.
        cpu_idle: Idle shares of the machine besides those of the outcomes.
        paced: Whether flows were paced.
    """
    failures = failures or RunFailures()
    result = summed_outcomes(
        wiring_summary(fabric),
        name,
        policy,
        outcomes,
        [*reasons.CIRCUMSTANCE.judge_each(remarks), *findings],
        paced=paced,
        failures=bool(failures.failures),
        cpu_idle=cpu_idle,
    )
    seconds = [iteration.measured_s or 0.0 for iteration in result.iterations]
    cost = network_cost(fabric, median(seconds) if seconds else None)
    return result.model_copy(update={"cost": cost, "failures": _failures(fabric, failures, failed)})


def fabric_result(
    fabric: Fabric,
    name: str,
    policy: str,
    runs: Sequence[IterationRun],
    *,
    cpu_idle: Sequence[float],
    remarks: Sequence[str],
    failures: RunFailures | None = None,
    paced: bool = True,
) -> FabricResult:
    """Convert the records of all iterations on one fabric; the arguments as in `summed_result`."""
    return summed_result(
        fabric,
        name,
        policy,
        outcomes_of(fabric, runs, failures),
        remarks=remarks,
        failures=failures,
        failed=runs,
        cpu_idle=cpu_idle,
        paced=paced,
    )


def with_findings(result: FabricResult, findings: Iterable[RunFinding]) -> FabricResult:
    """Return a result with further findings, which are its first reasons."""
    if not (listed := list(findings)):
        return result
    verdicts = [finding.verdict for finding in listed]
    texts = [finding.text for finding in listed]
    fidelity = result.fidelity.model_copy(
        update={
            "verdict": worst_verdict([*verdicts, result.fidelity.verdict]),
            "reasons": [*texts, *result.fidelity.reasons],
        }
    )
    return result.model_copy(update={"fidelity": fidelity})


def control_time_findings(took_s: Sequence[float], control_s: float | None) -> Iterator[RunFinding]:
    """Yield the finding on controllers that needed longer than `control_s` (model seconds)."""
    late_s = [s for s in took_s if control_s is not None and s > control_s + 1e-9]
    yield from reasons.SLOW_CONTROL.judge(
        len(late_s),
        count=len(took_s),
        allowed_ms=1e3 * (control_s or 0.0),
        most_ms=1e3 * max(late_s, default=0.0),
    )


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
    return EpsSummary(
        kind=str(fabric.eps.kind),
        leaves={
            leaf: [str(nic) for nic in fabric.eps_wiring.nics_under(leaf)] for leaf in fabric.leaves
        },
        spines=list(fabric.spines),
        oversubscription=fabric.eps.oversubscription,
        uplink_rate_bps=uplink_rate_bps(fabric),
    )


def _failures(
    fabric: Fabric, failures: RunFailures, runs: Sequence[IterationRun]
) -> list[FailureResult]:
    """Convert each failure, with the activity of the servers concerned in its iteration."""
    model_s, by_number = model_seconds(fabric), {run.number: run for run in runs}
    results = []
    entries = failures_json(
        failures.failures,
        failures.windows,
        lambda start_ns, end_ns: model_s(failures.run_ns(end_ns) - failures.run_ns(start_ns)),
    )
    for entry, failure in zip(entries, failures.failures, strict=True):
        details: dict[str, object] = {"marks": {}, "measured_s": None, "lanes": []}
        if run := by_number.get(entry["iteration"]):
            instants_ns = {
                "injected": failure.injected_ns,
                "detected": failure.detected_ns,
                "recovered": failure.recovered_ns,
            }
            details["marks"] = {
                name: model_s(failures.run_ns(instant_ns) - run.start_ns)
                for name, instant_ns in instants_ns.items()
                if instant_ns is not None
            }
            details["measured_s"] = model_s(run.end_ns - run.start_ns)
            details["lanes"] = _lanes(fabric, run, failure.what)
        results.append(FailureResult.model_validate(entry | details))
    return results


def _lanes(fabric: Fabric, run: IterationRun, what: Sequence[str]) -> list[ServerInterval]:
    """Activity of the failed and the backup servers; of the first server if a switch failed."""
    active = {span.server for span in run.spans}
    failed = {name.partition("/")[0] for name in what} & active or {fabric.servers[0]}
    shown = failed | (active & set(fabric.backup_servers))
    return [
        server_interval(fabric, span, run.start_ns) for span in run.spans if span.server in shown
    ]
