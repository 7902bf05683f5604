"""Runs of one experiment at several dilations, and what they should have in common."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from moefabric.results.model import FabricResult, read_run
from tests.support.namespaces import Island
from tests.support.paths import EXAMPLES

EXPERIMENT = EXAMPLES / "dilation.yaml"
NIC_SCALE = 2500
"""Rates are divided by it at each dilation, so that emulated NICs run at 40 Mb/s."""


def run_at(dilation: int, folder: Path, netns: str, settings: Sequence[str] = ()) -> FabricResult:
    """Run the experiment at a dilation; return its fabric's result, whatever its verdict.

    Args:
        dilation: The dilation.
        folder: A folder with a short name for the run's files.
        netns: Path of the network namespace in which the fabric is brought up.
        settings: Settings of the experiment.
    """
    out = folder / "out.json"
    moefabric = shutil.which("moefabric", path=str(Path(sys.executable).parent)) or ""
    scale = f"scale={{bytes: {NIC_SCALE / dilation}, dilation: {dilation}}}"
    options = [option for setting in (scale, *settings) for option in ("--set", setting)]
    done = subprocess.run(
        ["nsenter", f"--net={netns}", moefabric, "run", str(EXPERIMENT), *options, f"--json={out}"],
        env={**os.environ, "MOEFABRIC_RUN_DIR": str(folder / "run")},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    [result] = read_run(out).results
    return result


@contextmanager
def own_namespace() -> Iterator[tuple[Path, str]]:
    """Yield a folder with a short name, and the path of a network namespace for runs."""
    with ExitStack() as undo:
        island = Island(["home"], undo)
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mf")))
        yield folder, f"/run/netns/{island.netns('home')}"


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
