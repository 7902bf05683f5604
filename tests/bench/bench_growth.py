"""What grows with a cluster: predictions, planning of a region, and rules of the EPS.

Predictions are of 1,024 to 65,536 GPUs. Equal regions are the job of the paper's section D.5
(`examples/growth.yaml`, four fabrics), regions that differ that of `examples/paper-scale.yaml`
(three fabrics). Replicas are added for more GPUs. Rules and plans are those of fabrics of 32 to 512
servers, in regions of 8 servers with 6 optical and 2 electrical NICs.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from moefabric.config.experiment import ExperimentSpec
from moefabric.config.loader import load_experiment
from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.rules import eps_rules, server_rules
from moefabric.core.units import Scale
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.simulated_regions import simulated_regions
from moefabric.prediction.workload_loader import workload_on
from moefabric.workload.iterations.iteration import Reconfigure
from moefabric.workload.iterations.substitution import Substitutions
from tests.bench.recording import record
from tests.support.paths import EXAMPLES

pytestmark = pytest.mark.timeout(300)

MOEFABRIC: Final = Path(sys.executable).with_name("moefabric")
GPUS: Final = (1024, 4096, 16_384, 65_536)
MOST_S: Final = 60.0
MEASURE: Final = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print([usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024])
sys.exit(status)
"""
"""Runs a command and prints its CPU seconds and most memory.

The most memory of a process includes that before it began its program: here that of a small one.
"""
MOST_BYTES: Final = 4 << 30


@dataclass(frozen=True)
class Cost:
    """Seconds of the clock and of CPU, and the most memory, of a command; and its JSON."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    reply: dict[str, Any]


def predict(experiment: str, *settings: str) -> Cost:
    """Run `moefabric predict` and return what it costs."""
    chosen = [argument for setting in settings for argument in ("--set", setting)]
    command = [str(MOEFABRIC), "predict", str(EXAMPLES / experiment), "--json", *chosen]
    start_s = time.monotonic()
    words = [sys.executable, "-S", "-c", MEASURE, *command]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    wall_s = time.monotonic() - start_s
    reply, _, usage = done.stdout.rstrip().rpartition("\n")
    cpu_s, memory_bytes = json.loads(usage)
    return Cost(wall_s, cpu_s, memory_bytes, json.loads(reply))


def settings_of(regions: int, servers: int, stages: int) -> tuple[str, str]:
    """Return the settings of an experiment with so many regions."""
    wired = {"count": regions, "servers": servers, "ocs": {"settle": "25ms"}}
    return f"training.dp={regions // stages}", f"wiring.regions={json.dumps([wired])}"


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize(
    ("experiment", "servers", "stages"),
    [
        pytest.param("growth.yaml", 4, 4, id="equal"),
        pytest.param("paper-scale.yaml", 8, 4, id="different"),
    ],
)
def test_prediction_takes_a_minute_and_4_gb_at_most(
    experiment: str, servers: int, stages: int, gpus: int
) -> None:
    cost = predict(experiment, *settings_of(gpus // 8 // servers, servers, stages))
    regions = "equal regions" if experiment == "growth.yaml" else "regions that differ"
    for fabric in cost.reply["fabrics"]:
        some, usd = fabric["simulated"], fabric["cost"]["network_usd"]
        error = some["iteration_error_s"]
        name = f"predicted iteration, {regions}, {fabric['fabric']}"
        record(f"{name}: {gpus:,} GPUs", "s", fabric["iteration_s"])
        if error is not None:
            record(f"{name}, standard error of its sample: {gpus:,} GPUs", "s", error)
        print(
            f"{gpus} GPUs, {fabric['fabric']}: iteration {fabric['iteration_s']:.4f} s"
            + (f" ± {error:.4f}" if error is not None else "")
            + f", {some['regions']} of {some['all_regions']} regions, {usd / 1e6:.2f} million USD"
        )
    took = f"{cost.wall_s:.1f} s, {cost.cpu_s:.1f} s of CPU, {cost.memory_bytes / 1e6:.0f} MB"
    print(f"{gpus} GPUs, {experiment}: {took}")
    name = f"`moefabric predict` of {regions}"
    record(f"{name}, CPU: {gpus:,} GPUs", "s", cost.cpu_s, at_most=MOST_S)
    record(
        f"{name}, memory: {gpus:,} GPUs", "MB", cost.memory_bytes / 1e6, at_most=MOST_BYTES / 1e6
    )
    assert cost.cpu_s < MOST_S
    assert cost.memory_bytes < MOST_BYTES


def paper_scale(servers: int) -> ExperimentSpec:
    """Return the experiment of `examples/paper-scale.yaml` with so many servers."""
    settings = settings_of(servers // 8, 8, 4)
    eps = "wiring.eps={servers_per_leaf: 16, spines: 4}"
    return load_experiment(EXAMPLES / "paper-scale.yaml", [*settings, eps])


@pytest.mark.parametrize("policy", ["mixnet", "spill", "joint"])
def test_planning_time_of_a_region_does_not_grow_with_the_fabric(policy: str) -> None:
    took_s = {}
    chosen = policy_named(policy)
    for servers in (32, 512):
        spec = paper_scale(servers)
        fabric = spec.build_fabric(spec.fabrics[1], "bench", Scale())
        region, work = fabric.regions[0], workload_on(spec, fabric, EXAMPLES)
        demand, seconds = work.layer_of(0, 0, 0).demand, []
        for _ in range(20):
            start_s = time.perf_counter()
            chosen.split(fabric, demand, chosen.circuits(fabric, region, demand, CircuitSet()))
            seconds.append(time.perf_counter() - start_s)
        took_s[servers] = median(seconds)
        print(f"{policy}, {servers} servers: {1e3 * took_s[servers]:.2f} ms for a region")
        name = f"planning of one demand of 8 servers, {policy}: {servers} servers in the fabric"
        record(name, "ms", samples=seconds)
    assert took_s[512] < 2 * took_s[32]


def test_rules_of_a_region_stay_and_those_of_the_eps_grow() -> None:
    of_region = {}
    for servers in (32, 128, 512):
        spec = paper_scale(servers)
        fabric = spec.build_fabric(spec.fabrics[1], "bench", Scale())
        of_region[servers] = len(server_rules(fabric, fabric.regions[0]))
        start_s = time.perf_counter()
        rules = eps_rules(fabric)
        took_s = time.perf_counter() - start_s
        switches = Counter(rule.switch for rule in rules)
        leaf, spine = switches["leaf0"], switches["spine0"]
        counts = {"8 server switches": of_region[servers], "a leaf": leaf, "a spine": spine}
        for what, count in {**counts, "the EPS": len(rules)}.items():
            record(f"rules of {what}: {servers} servers in the fabric", "", count)
        record(f"time to compute the EPS's rules: {servers} servers in the fabric", "s", took_s)
        print(
            f"{servers} servers: {of_region[servers]} rules of a region, {leaf} of a leaf, "
            f"{spine} of a spine, {len(rules)} of the EPS, computed in {took_s:.2f} s"
        )
    assert len(set(of_region.values())) == 1


def test_requests_for_circuits_of_a_region_do_not_depend_on_the_number_of_regions() -> None:
    requests = {}
    for regions in (32, 2048):
        spec = load_experiment(EXAMPLES / "growth.yaml", [*settings_of(regions, 4, 4)])
        part = simulated_regions(spec, spec.fabrics[2]).part
        fabric = part.build_fabric(spec.fabrics[2], "bench", Scale())
        jobs = Jobs.of(part, fabric, workload_on(part, fabric, EXAMPLES), spec.training.dp)
        tasks = jobs.tasks(jobs.all[0], 0, Substitutions())
        counts = Counter(task.region for task in tasks if isinstance(task.work, Reconfigure))
        requests[regions] = counts["r0"]
        record(
            f"requests of a region for circuits in an iteration: {regions:,} regions",
            "",
            counts["r0"],
        )
        print(f"{regions} regions: {counts['r0']} requests of a region in an iteration")
    assert len(set(requests.values())) == 1
