"""A hybrid run against full emulation, and against hybrid runs that replay the model badly.

Each run counts, as it is: there is no second try.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from moefabric.config.loader import load_experiment
from moefabric.results.model import FabricResult, RunResult
from tests.bench.bench_fidelity import run_example
from tests.bench.recording import record
from tests.support.hybrid_lab import completions as in_the_model
from tests.support.hybrid_lab import errors as relative_errors
from tests.support.hybrid_lab import hybrid
from tests.support.paths import EXAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SETTINGS = [one for one in os.environ.get("MOEFABRIC_HYBRID_SETTINGS", "").split(";") if one]
"""Settings of all runs, such as `training.dp=16;wiring.regions=[{count: 32, servers: 4}]`.

Figures of runs with settings are printed and not kept.
"""
MOST = 0.03
Key = tuple[str, str, int | None, int, int]


def completions(result: FabricResult, servers: frozenset[str]) -> dict[Key, float]:
    """Return when the last flow of a region ends in each of its collectives and transfers."""
    ends: dict[Key, float] = {}
    for flow in result.flows:
        if flow.kind != "background" and not servers.isdisjoint((flow.src, flow.dst)):
            key = flow.kind, flow.direction, flow.layer, flow.micro_batch, flow.iteration
            ends[key] = max(ends.get(key, 0.0), flow.end_s)
    return ends


def errors(full: Mapping[Key, float], hybrid: Mapping[Key, float], kinds: set[str]) -> list[float]:
    assert full.keys() == hybrid.keys()
    return [hybrid[key] / full[key] - 1 for key in full if key[0] in kinds]


def iteration_s(result: FabricResult) -> float:
    return median(one.measured_s or 0.0 for one in result.iterations)


def total_error(full: Mapping[Key, float], hybrid: Mapping[Key, float]) -> float:
    return sum(hybrid.values()) / sum(full.values()) - 1


def row(name: str, full: FabricResult, hybrid: FabricResult, servers: frozenset[str]) -> float:
    """Print the errors of a hybrid run; return that of all completion times together."""
    whole, own = completions(full, servers), completions(hybrid, servers)
    listed = [
        errors(whole, own, kinds)
        for kinds in ({"dispatch", "combine"}, {"pipeline"}, {"all-reduce"})
    ]
    iteration = iteration_s(hybrid) / iteration_s(full) - 1
    total = total_error(whole, own)
    print(
        f"| {full.fabric} | {name} | {iteration:+.1%} | {total:+.1%} | "
        + " | ".join(f"{np.median(e):+.1%}, {np.abs(e).max():.1%}" for e in listed)
        + f" | {hybrid.fidelity.verdict} |"
    )
    if not SETTINGS:
        what = f"hybrid run relative to full emulation, background {name}"
        record(f"{what}, iteration: {full.fabric}", "%", iteration)
        record(f"{what}, all completion times together: {full.fabric}", "%", total)
    return max(abs(iteration), abs(total))


@pytest.mark.parametrize(
    ("example", "replicas", "fabric"),
    [
        ("hybrid", 4, 0),
        ("hybrid", 4, 1),
        ("hybrid", 16, 0),
        ("hybrid", 16, 1),
        ("hybrid-32768", 128, 0),
    ],
)
def test_models_of_part_and_cluster_agree(example: str, replicas: int, fabric: int) -> None:
    """Without packets: what is left out of the fabric changes nothing."""
    settings = [f"training.dp={replicas}"]
    if example == "hybrid":
        settings.append(f"wiring.regions=[{{count: {2 * replicas}, servers: 4}}]")
    for mode in ("replayed", "average", "none"):
        began_s = time.monotonic()
        spec, jobs = hybrid([*settings, f"hybrid.background={mode}"], fabric, example)
        took_s = time.monotonic() - began_s
        iteration_s, whole = in_the_model(spec, jobs.whole, fabric)
        hybrid_s, own = in_the_model(spec, jobs, fabric)
        listed = np.abs(relative_errors(whole, own))
        print(
            f"| {spec.wiring.server_count} | {len(jobs.fabric.servers)} | "
            f"{spec.fabrics[fabric].name} | {mode} | {hybrid_s / iteration_s - 1:+.1%} | "
            f"{np.median(listed):.1%}, {listed.max():.1%} | {took_s:.1f} s |"
        )
        at = f"{spec.wiring.server_count} servers, {spec.fabrics[fabric].name}"
        what, most = f"hybrid model relative to the cluster's, background {mode}", None
        if mode == "replayed":
            most = MOST
        record(f"{what}, iteration: {at}", "%", hybrid_s / iteration_s - 1, at_most=most)
        name = f"{what}, absolute errors of completion times: {at}"
        record(name, "%", samples=listed.tolist(), at_most=most)
        if mode == "replayed":
            assert np.median(listed) < MOST
            assert abs(hybrid_s / iteration_s - 1) < MOST


@pytest.mark.kernel
def test_hybrid_run_agrees_with_full_emulation(tmp_path: Path) -> None:
    spec = load_experiment(EXAMPLES / "hybrid.yaml", SETTINGS)
    assert spec.hybrid is not None
    runs: dict[str, RunResult] = {}

    def run(name: str, settings: Sequence[str]) -> None:
        out, every = tmp_path / f"{name}.json", (*SETTINGS, *settings)
        runs[name] = run_example("hybrid", out, *every, valid=False, flags=["--flows"])

    run("full", ["hybrid=null"])
    scale = runs["full"].manifest.scale
    assert scale is not None
    same = f"scale={{bytes: {scale.bytes}, dilation: {scale.dilation}}}"
    for mode in ("replayed", "average", "none"):
        run(mode, [same, f"hybrid.background={mode}"])
    print("| fabric | background | iteration | all | all-to-alls | transfers | sums | verdict |")
    worst: dict[str, list[float]] = {}
    for mode in ("replayed", "average", "none"):
        for full, part in zip(runs["full"].results, runs[mode].results, strict=True):
            servers = frozenset(
                server for name in spec.hybrid.emulated for server in full.wiring.regions[name]
            )
            worst.setdefault(mode, []).append(row(mode, full, part, servers))
    assert max(worst["replayed"]) < MOST
    assert max(worst["none"]) > MOST
