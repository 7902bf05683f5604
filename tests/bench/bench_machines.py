"""The prototype on one machine and spread over two of a Ray cluster, on this one machine.

The machines are namespaces, which share its cores. Each experiment runs once on the first machine,
then with its region and its packet switches on different machines. There is no second try.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pytest

from tests.bench.recording import record
from tests.support.machine_namespaces import NamespaceMachine, machine_namespaces
from tests.support.paths import EXAMPLES
from tests.support.ray_machines import ray_cluster
from tests.support.slow_machines import finished_run

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(1500)]
ON_CLUSTER: Final = ("--cluster", "auto", "--spread", "strict-spread")
MOST: Final = 0.02
LIMIT_S: Final = 600.0


@pytest.fixture(scope="module")
def head() -> Iterator[NamespaceMachine]:
    """The first of two nodes of a cluster."""
    with (
        machine_namespaces(["a", "b"], subnet="10.94.0") as machines,
        ray_cluster(machines) as nodes,
    ):
        yield nodes["a"]


def results(head: NamespaceMachine, file: Path, *options: str) -> dict[str, Any]:
    """Run the prototype on the cluster or without it; return its results."""
    argv = (sys.executable, "-m", "moefabric", "run", str(EXAMPLES / "prototype.yaml"))
    ended = head.run(*argv, "--json", str(file), *options, timeout_s=LIMIT_S, check=False)
    return finished_run(file, ended.returncode, ended.stderr)


def iteration_s(result: Mapping[str, Any]) -> float:
    return float(median(one["measured_s"] for one in result["iterations"]))


def collective_errors(
    alone: Mapping[str, Any], spread: Mapping[str, Any]
) -> "np.ndarray[Any, Any]":
    """Return the differences of the times of all collectives, relative to one machine."""
    times = [[one["measured_s"] for one in result["collectives"]] for result in (spread, alone)]
    ratios: np.ndarray[Any, Any] = np.array(times[0]) / np.array(times[1])
    return ratios - 1


def test_prototype_takes_as_long_on_two_machines(head: NamespaceMachine, tmp_path: Path) -> None:
    alone = results(head, tmp_path / "alone.json")
    spread = results(head, tmp_path / "spread.json", *ON_CLUSTER)
    assert alone["manifest"]["scale"] == spread["manifest"]["scale"]
    worst = 0.0
    print()
    for one, other in zip(alone["results"], spread["results"], strict=True):
        errors = collective_errors(one, other)
        iteration = iteration_s(other) / iteration_s(one) - 1
        low, middle, high = np.percentile(errors, [5, 50, 95])
        worst = max(worst, abs(iteration), abs(middle))
        what, end = "two machines relative to one", f": {one['fabric']}"
        record(f"{what}, iteration{end}", "%", iteration, at_most=MOST)
        name = f"{what}, collectives, signed median{end}"
        record(name, "%", samples=errors.tolist(), at_most=MOST)
        verdicts = " and ".join(result["fidelity"]["verdict"] for result in (one, other))
        print(
            f"{one['fabric']}: iteration {iteration:+.1%}, {len(errors)} collectives: "
            f"p5 {low:+.1%}, "
            f"median {middle:+.1%}, p95 {high:+.1%}; {verdicts}"
        )
    assert worst <= MOST
