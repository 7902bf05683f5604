"""Summation of the outcomes of a fabric's iterations into its entry in the run's JSON."""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from moefabric.core.failures import failures_json
from moefabric.core.topology import Fabric, fabric_description
from moefabric.runner.comparison import network_cost
from moefabric.runner.evidence import EvidenceSum
from moefabric.runner.fidelity import Observation, judge, worst_verdict
from moefabric.runner.iteration_outcome import (
    IterationOutcome,
    iteration_flows,
    model_seconds,
    outcomes_of,
    server_interval,
)
from moefabric.runner.result_model import (
    EpsSummary,
    FabricResult,
    FidelityResult,
    Integrity,
    Verdict,
    WiringSummary,
)
from moefabric.runner.result_parts import ControlTime, FailureResult, FlowResult, ServerInterval
from moefabric.runner.run_records import IterationRun, RunFailures


class OutcomeSums:
    """What the outcomes of a fabric's iterations add up to, without the outcomes themselves."""

    def __init__(self, mtu: int, servers: Sequence[str], *, paced: bool = True) -> None:
        self._mtu, self._paced = mtu, paced
        self._order = {server: place for place, server in enumerate(servers)}
        self._evidence, self._quiet = EvidenceSum(), EvidenceSum()
        self.integrity = Integrity(
            bytes_sent=0, bytes_received=0, corrupt=0, lost_transfers=0, retried_transfers=0
        )
        self.iterations = 0
        self._iterations_s, self._changed_s, self._unchanged_s = (array("d") for _ in range(3))
        self._cpu_idle = array("d")
        self._timelines: list[tuple[bool, int, list[ServerInterval]]] = []

    def add(self, outcome: IterationOutcome) -> None:
        """Add the outcome of an iteration."""
        self.iterations += 1
        self._evidence.add(outcome.evidence)
        self._quiet.add(outcome.quiet_evidence or outcome.evidence)
        sums = {
            name: (getattr(self.integrity, name) or 0) + (getattr(outcome.integrity, name) or 0)
            for name in Integrity.model_fields
        }
        self.integrity = Integrity(**sums)
        self._iterations_s.append(outcome.result.measured_s or 0.0)
        self._cpu_idle.extend(outcome.cpu_idle)
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

    @property
    def iteration_s(self) -> float | None:
        """Median model seconds of an iteration; None without any."""
        return float(np.median(self._iterations_s)) if self._iterations_s else None

    def fidelity(
        self, remarks: Sequence[str], *, failures: bool, cpu_idle: Sequence[float] = ()
    ) -> FidelityResult:
        """Return the verdict on what was added.

        Args:
            remarks: Reasons for which the run is degraded whatever was measured.
            failures: Whether failures were injected.
            cpu_idle: Idle shares of the machine besides those of the outcomes.
        """
        every, quiet = (
            evidence.observation(
                self._mtu,
                self.integrity,
                cpu_idle=[*self._cpu_idle, *cpu_idle],
                remarks=remarks,
                failures=failures,
                paced=self._paced,
            )
            for evidence in (self._evidence, self._quiet)
        )
        return better_verdict(every, quiet)


def summed_result(
    fabric: Fabric,
    name: str,
    policy: str,
    outcomes: Iterable[IterationOutcome],
    *,
    remarks: Sequence[str],
    failures: RunFailures | None = None,
    failed: Sequence[IterationRun] = (),
    cpu_idle: Sequence[float] = (),
    paced: bool = True,
) -> FabricResult:
    """Sum the outcomes of one fabric's iterations.

    Args:
        fabric: The fabric on which the workload was replayed.
        name: Name of the fabric in the experiment.
        policy: Name of the policy that chose the circuits.
        outcomes: Outcomes of the iterations, of at least one.
        remarks: Reasons for which the run is degraded whatever was measured.
        failures: Failures during the replay. The collectives that they disturbed are reported
            but excluded from the verdict.
        failed: Records of the iterations with failures.
        cpu_idle: Idle shares of the machine besides those of the outcomes.
        paced: Whether flows were paced.
    """
    failures = failures or RunFailures()
    sums, listed = OutcomeSums(fabric.mtu, fabric.servers, paced=paced), list[IterationOutcome]()
    for outcome in outcomes:
        sums.add(outcome)
        listed.append(outcome.without_evidence())
    return FabricResult(
        fabric=name,
        policy=policy,
        wiring=wiring_summary(fabric),
        cost=network_cost(fabric, sums.iteration_s),
        iterations=[outcome.result for outcome in listed],
        collectives=[one for outcome in listed for one in outcome.collectives],
        transfers=[one for outcome in listed for one in outcome.transfers],
        reconfigurations=[one for outcome in listed for one in outcome.reconfigurations],
        control_time=sums.control_time,
        harness_s=sum(outcome.result.harness_s for outcome in listed),
        timeline=sums.timeline,
        failures=_failures(fabric, failures, failed),
        integrity=sums.integrity,
        fidelity=sums.fidelity(remarks, failures=bool(failures.failures), cpu_idle=cpu_idle),
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
    paced: bool = True,
) -> FabricResult:
    """Convert the records of all iterations on one fabric; the arguments as in `summed_result`."""
    return summed_result(
        fabric,
        name,
        policy,
        outcomes_of(fabric, None, runs, failures),
        remarks=remarks,
        failures=failures,
        failed=runs,
        cpu_idle=cpu_idle,
        paced=paced,
    )


def better_verdict(every: Observation, quiet: Observation) -> FidelityResult:
    """Judge all collectives or, if that verdict is better, those without CPU steal.

    A hypervisor that takes the CPU may delay a collective, but needn't.
    """
    judged = judge(every)
    if judged.verdict is not Verdict.PASS:
        without_steal = judge(quiet)
        if worst_verdict((judged.verdict, without_steal.verdict)) is judged.verdict:
            return without_steal
    return judged


def empty_result(fabric: Fabric, name: str, policy: str) -> FabricResult:
    """Return the result of a fabric on which no iteration ended: it is invalid."""
    return FabricResult(
        fabric=name,
        policy=policy,
        wiring=wiring_summary(fabric),
        fidelity=FidelityResult(verdict=Verdict.INVALID, reasons=["no iteration ended"]),
    )


def invalidated(result: FabricResult, reasons: Sequence[str]) -> FabricResult:
    """Return a result that these reasons, if there are any, make invalid."""
    if not reasons:
        return result
    fidelity = result.fidelity.model_copy(
        update={"verdict": Verdict.INVALID, "reasons": [*reasons, *result.fidelity.reasons]}
    )
    return result.model_copy(update={"fidelity": fidelity})


def control_time_remarks(took_s: Sequence[float], control_s: float | None) -> list[str]:
    """Return a remark if controllers needed longer than a fixed `control_s` (model seconds)."""
    if control_s is None:
        return []
    late_s = [seconds for seconds in took_s if seconds > control_s + 1e-9]
    if not late_s:
        return []
    needed = f"{len(late_s)} of {len(took_s)} needed up to {1e3 * max(late_s):.1f} ms"
    allowed = f"control_time {1e3 * control_s:g} ms"
    return [f"the control plane is slower than {allowed}: {needed}; raise the dilation"]


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
        leaves={leaf: [str(nic) for nic in fabric.nics_under(leaf)] for leaf in fabric.leaves},
        spines=list(fabric.spines),
        oversubscription=fabric.eps.oversubscription,
        uplink_rate_bps=fabric.uplink_rate_bps,
    )


def flow_results(fabric: Fabric, runs: Sequence[IterationRun]) -> list[FlowResult]:
    """Return all flows of a replay, iteration by iteration."""
    return [flow for run in runs for flow in iteration_flows(fabric, run)]


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
