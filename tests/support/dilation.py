"""Runs of one experiment at several dilations, and what they should have in common."""

from collections.abc import Sequence
from statistics import median

from moefabric.results.model import FabricResult, read_run
from tests.support.command_home import Home
from tests.support.paths import EXAMPLES

EXPERIMENT = EXAMPLES / "dilation.yaml"
NIC_SCALE = 2500
"""Rates are divided by it at each dilation, so that emulated NICs run at 40 Mb/s."""


def run_at(dilation: int, home: Home, settings: Sequence[str] = ()) -> FabricResult:
    """Run the experiment at a dilation; return its fabric's result, whatever its verdict.

    Args:
        dilation: The dilation.
        home: The namespace in which the fabric is brought up, and the folder of the run's files.
        settings: Settings of the experiment.
    """
    out = home.folder / "out.json"
    scale = f"scale={{bytes: {NIC_SCALE / dilation}, dilation: {dilation}}}"
    options = [option for setting in (scale, *settings) for option in ("--set", setting)]
    done = home.call("run", str(EXPERIMENT), *options, f"--json={out}", timeout_s=280)
    assert done.returncode in (0, 3), done.stderr
    [result] = read_run(out).results
    return result


def iteration_s(result: FabricResult) -> float:
    """Return the median iteration in model seconds."""
    return median(each.measured_s or 0.0 for each in result.iterations)


def all_to_alls_s(result: FabricResult) -> float:
    """Return the mean time of all-to-alls in an iteration, in model seconds."""
    return sum(c.measured_s for c in result.collectives) / len(result.iterations)


def between_packets_s(result: FabricResult) -> float:
    """Return the mean time of an iteration without its all-to-alls, in model seconds."""
    seconds = [each.measured_s or 0.0 for each in result.iterations]
    return sum(seconds) / len(seconds) - all_to_alls_s(result)


def wait_s(result: FabricResult) -> float:
    """Return the median wait of forward dispatches for light, in model seconds."""
    return result.first_all_to_all.waited_s or 0.0


def without_control_s(result: FabricResult) -> float:
    """Return the median iteration without the control plane's share, which varies by itself.

    Every change is waited for, as light settles for longer than attention takes in either pass.
    """
    own: dict[int, float] = {}
    for change in result.reconfigurations:
        own[change.iteration] = own.get(change.iteration, 0.0) + (change.control_s or 0.0)
    return median((i.measured_s or 0.0) - own.get(i.iteration, 0.0) for i in result.iterations)


def describe(dilation: int, result: FabricResult) -> str:
    """Return a line of the figures of a run."""
    control = result.control_time
    figures = {
        "iteration": iteration_s(result),
        "without control": without_control_s(result),
        "wait": wait_s(result),
        "control p50": control.p50_s or 0.0,
        "p95": control.p95_s or 0.0,
        "all-to-alls": all_to_alls_s(result),
        "all else": between_packets_s(result),
    }
    shown = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in figures.items())
    verdict = f"{result.fidelity.verdict}, harness {result.harness_s:.3f} s of wall time"
    return f"dilation {dilation}: {shown} ms (n {control.count}); {verdict}"
