"""Failures of a run, in model seconds: detection, recovery, and what they cost an iteration."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final

from moefabric.core.failures import FailureRecord, healthy_windows
from moefabric.core.topology import Fabric
from moefabric.results.parts import FailureResult, ServerInterval
from moefabric.results.records.records import IterationRun, RunFailures
from moefabric.results.verdict.iteration_outcome import model_seconds, server_interval

_INSTANTS: Final = ("injected", "detected", "recovered", "cleared")


def failure_results(
    fabric: Fabric, failures: RunFailures, runs: Sequence[IterationRun]
) -> list[FailureResult]:
    """Convert each failure, with the activity of the servers concerned in its iteration.

    The failure's iteration is compared with the median of the healthy ones, and so are the later
    iterations in which the failure lasted.

    Args:
        failures: The failures, and the windows of all iterations.
        runs: Records of the iterations with failures.
    """
    healthy = [window.seconds for window in healthy_windows(failures.failures, failures.windows)]
    base_s, by_number = median(healthy) if healthy else None, {run.number: run for run in runs}
    return [
        _failure_result(fabric, failures, failure, base_s, by_number)
        for failure in failures.failures
    ]


def _failure_result(
    fabric: Fabric,
    failures: RunFailures,
    failure: FailureRecord,
    base_s: float | None,
    runs: Mapping[int, IterationRun],
) -> FailureResult:
    seconds, window = model_seconds(fabric), failures.iteration_of(failure)
    instants_ns = {
        name: failures.run_ns(instant_ns)
        for name in _INSTANTS
        if (instant_ns := getattr(failure, f"{name}_ns")) is not None
    }
    injected_ns = instants_ns["injected"]

    def after_injection(name: str) -> float | None:
        return seconds(instants_ns[name] - injected_ns) if name in instants_ns else None

    start_ns = failures.run_ns(window.start_ns) if window else injected_ns
    later_s = [
        later.seconds
        for later in failures.windows
        if window
        and later.number > window.number
        and failure.overlaps(later.start_ns, later.end_ns)
        and (failure.cleared_ns is None or later.end_ns < failure.cleared_ns)
    ]
    run = runs.get(window.number) if window else None
    return FailureResult(
        kind=failure.kind,
        what=list(failure.what),
        iteration=window.number if window else None,
        injected_s=max(0.0, seconds(injected_ns - start_ns)) if window else None,
        detected_s=after_injection("detected"),
        recovered_s=after_injection("recovered"),
        cleared_s=after_injection("cleared"),
        detected_by=failure.detected_by,
        action=failure.action,
        slow_down=window.seconds / base_s - 1 if window and base_s else None,
        slow_down_after=fmean(later_s) / base_s - 1 if later_s and base_s else None,
        ok=failure.recovered_ns is not None,
        marks={
            name: seconds(at_ns - run.start_ns)
            for name, at_ns in instants_ns.items()
            if run and name != "cleared"
        },
        measured_s=seconds(run.end_ns - run.start_ns) if run else None,
        lanes=_lanes(fabric, run, failure.what) if run else [],
    )


def _lanes(fabric: Fabric, run: IterationRun, what: Sequence[str]) -> list[ServerInterval]:
    """Activity of the failed and the backup servers; of the first server if a switch failed."""
    active = {span.server for span in run.spans}
    failed = {name.partition("/")[0] for name in what} & active or {fabric.servers[0]}
    shown = failed | (active & set(fabric.backup_servers))
    return [
        server_interval(fabric, span, run.start_ns) for span in run.spans if span.server in shown
    ]
