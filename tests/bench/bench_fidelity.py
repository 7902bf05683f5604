"""Signed errors of the predictions on this machine; `make bench` prints them.

Every run counts, with its tails: there is no second try and no best of several runs.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from moefabric.results.model import ErrorSummary, FabricResult, RunResult, read_run
from tests.bench.recording import record
from tests.support.command_home import MOEFABRIC, NEEDS_COMMAND
from tests.support.paths import EXAMPLES

FASTEST = -0.002
"""Greatest share of the bound by which a collective may end before it."""

pytestmark = [*NEEDS_COMMAND, pytest.mark.slow]


def run_example(
    example: str, out: Path, *settings: str, valid: bool = True, flags: Sequence[str] = ()
) -> RunResult:
    """Run an example, print its errors and return its result; `valid` refuses an invalid run."""
    argv = [MOEFABRIC, "run", str(EXAMPLES / f"{example}.yaml"), "--json", str(out), *flags]
    argv += [word for setting in settings for word in ("--set", setting)]
    steal_before_s = cpu_steal_s()
    completed = subprocess.run(argv, capture_output=True, text=True, timeout=1500, check=False)
    run = read_run(out) if completed.returncode in {0, 3} else RunResult()
    assert run.results, completed.stderr
    show(run, cpu_steal_s() - steal_before_s)
    assert completed.returncode == 0 or not valid, [r.fidelity.reasons for r in run.results]
    return run


def cpu_steal_s() -> float:
    """Return the seconds of CPU that the hypervisor has taken from this machine so far."""
    ticks = int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
    return ticks / os.sysconf("SC_CLK_TCK")


def against_plan(result: FabricResult) -> list[float]:
    """Return the errors of all collectives against the fluid model, which plans the paces."""
    return [c.measured_s / c.planned_s - 1 for c in result.collectives if c.planned_s]


def ratio_error(result: FabricResult) -> float:
    """Return the error of the ratio to `eps`; infinite without a ratio."""
    measured, predicted = result.ratios.measured_vs_eps, result.ratios.predicted_vs_eps
    return measured / predicted - 1 if measured and predicted else float("inf")


def show(run: RunResult, steal_s: float) -> None:
    """Print every signed distribution, and that of the collectives against the plan."""
    print(f"\n{run.manifest.datapath}; {run.manifest.transport}; {steal_s:.0f} s CPU steal")
    print(f"{'':14}{'':12}{'samples':>8}" + "".join(f"{n:>9}" for n in HEADS))
    for result in run.results:
        fidelity, wiring = result.fidelity, result.wiring
        print(f"{result.fabric}: bytes 1/{wiring.bytes_scale:g}, times x{wiring.dilation:g}")
        for kind, summary in fidelity.completion_errors.items():
            print(line(result.fabric, kind, summary.n, figures(summary)))
        planned = against_plan(result)
        percentiles = [float(p) for p in np.percentile(planned, (0, 5, 50, 95, 100))]
        magnitude = float(np.percentile(np.abs(planned), 95))
        print(line(result.fabric, "(plan)", len(planned), [*percentiles, magnitude]))
        print(
            f"{result.fabric:14}vs EPS {result.ratios.measured_vs_eps or 0:.3f} (predicted "
            f"{result.ratios.predicted_vs_eps or 0:.3f})  {fidelity.disturbed:.0%} left out  "
            f"least CPU idle {fidelity.cpu_idle_min or 0:.0%}  {fidelity.verdict}"
        )


HEADS = ("least", "p5", "median", "p95", "greatest", "|p95|")


def figures(summary: ErrorSummary) -> list[float]:
    """Return a distribution's figures in the order of `HEADS`."""
    return [summary.min, summary.p5, summary.p50, summary.p95, summary.max, summary.abs_p95]


def line(fabric: str, kind: str, count: int, errors: list[float]) -> str:
    return f"{fabric:14}{kind:12}{count:8}" + "".join(f"{e * 100:+9.2f}" for e in errors)


def record_errors(
    what: str, run: RunResult, bounds: Mapping[str, tuple[float | None, float]]
) -> None:
    """Hand over the errors of each fabric, with bounds of median and tail for each kind of work."""
    for kind, (bias, tail) in bounds.items():
        for result in run.results:
            errors = result.fidelity.completion_errors[kind]
            name, end = f"{what}, errors of {kind}s", f": {result.fabric}"
            record(f"{name}, signed median{end}", "%", errors.p50, n=errors.n, at_most=bias)
            record(f"{name}, 95th percentile{end}", "%", errors.abs_p95, n=errors.n, at_most=tail)


def faults(
    run: RunResult,
    *,
    bias: float,
    tail: float,
    flow_tail: float,
    kinds: Sequence[str] = ("collective",),
) -> list[str]:
    """Return what is out of its bounds: median, tails, and collectives that beat the bound.

    Args:
        run: The run.
        bias: Bound of the absolute value of the collectives' signed median.
        tail: Bound of the 95th percentile of the collectives' absolute errors.
        flow_tail: Bound of the 95th percentile of the flows' absolute errors.
        kinds: What is held to the bounds of collectives.
    """
    found = []
    for result in run.results:
        flows = result.fidelity.completion_errors["flow"]
        checks = {
            f"95th percentile of flows {flows.abs_p95:.2%}": flows.abs_p95 <= flow_tail,
            f"{min(against_plan(result)):+.2%} of the bound": min(against_plan(result)) >= FASTEST,
        }
        for kind in kinds:
            errors = result.fidelity.completion_errors[kind]
            checks[f"median of {kind}s {errors.p50:+.2%}"] = abs(errors.p50) <= bias
            checks[f"95th percentile of {kind}s {errors.abs_p95:.2%}"] = errors.abs_p95 <= tail
        found += [f"{result.fabric}: {name}" for name, holds in checks.items() if not holds]
    return found


@pytest.mark.timeout(1000)
def test_prototype_completes_as_predicted(tmp_path: Path) -> None:
    run = run_example("prototype", tmp_path / "out.json")
    predicted = {r.fabric: round(r.ratios.predicted_vs_eps or 0.0, 2) for r in run.results}
    assert predicted == {"eps": 1.0, "mixnet": 1.44, "mixnet-spill": 1.02, "static": 1.44}
    record_errors("prototype", run, {"collective": (0.003, 0.02), "flow": (None, 0.02)})
    lead = min(min(against_plan(result)) for result in run.results)
    record(
        "prototype, greatest lead of a collective on the fluid bound", "%", -lead, at_most=-FASTEST
    )
    assert max(abs(ratio_error(result)) for result in run.results) <= 0.02
    assert not faults(run, bias=0.003, tail=0.02, flow_tail=0.02)


@pytest.mark.timeout(1000)
def test_prototype_over_plain_tcp_completes_as_predicted(tmp_path: Path) -> None:
    """Flows without a pace share full links equally; each may differ, the last one hardly."""
    run = run_example("prototype", tmp_path / "out.json", "transport=tcp")
    bounds = {"collective": (0.01, 0.05), "flow": (None, 0.40)}
    record_errors("prototype over plain TCP", run, bounds)
    assert max(abs(ratio_error(result)) for result in run.results) <= 0.02
    assert not faults(run, bias=0.01, tail=0.05, flow_tail=0.40)


@pytest.mark.ovs
@pytest.mark.timeout(1000)
def test_run_on_open_vswitch_completes(tmp_path: Path) -> None:
    """Errors are only printed: without the kernel's module, one OVS thread polls every port."""
    run = run_example("prototype", tmp_path / "out.json", "wiring.switch=ovs", valid=False)
    assert (run.manifest.datapath or "").startswith("ovs")


@pytest.mark.timeout(1000)
def test_region_of_eight_servers_with_eight_nics_completes_as_predicted(tmp_path: Path) -> None:
    """64 NICs of 50 Mb/s."""
    run = run_example(
        "region", tmp_path / "out.json", "scale={bytes: 50, dilation: 40}", "training.iterations=3"
    )
    bounds = {"collective": (0.003, 0.02), "flow": (None, 0.02)}
    record_errors("region of 8 servers with 8 NICs at 50 Mb/s", run, bounds)
    assert not faults(run, bias=0.003, tail=0.02, flow_tail=0.02)


@pytest.mark.timeout(600)
def test_job_of_256_gpus_over_spines_completes_as_predicted(tmp_path: Path) -> None:
    """The largest job that two cores emulate at 20 Mb/s a NIC: 128 NICs, stages and replicas.

    1,024 GPUs of 8 NICs a server need 14 cores; on two, a NIC runs at 3 Mb/s and none is idle.
    """
    run = run_example("spines", tmp_path / "out.json")
    kinds = ("collective", "transfer")
    bounds = {"collective": (0.01, 0.05), "transfer": (0.01, 0.05), "flow": (None, 0.05)}
    record_errors("256 GPUs over spines", run, bounds)
    assert not faults(run, bias=0.01, tail=0.05, flow_tail=0.05, kinds=kinds)
    for result in run.results:
        assert result.spines is not None
        assert 0.99 < (result.spines.counted_bytes or 0) / result.spines.bytes < 1.01
