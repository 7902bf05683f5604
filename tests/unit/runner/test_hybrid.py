"""Hybrid runs in the model: emulated regions proceed as in the whole cluster."""

from collections.abc import Mapping
from statistics import median

import pytest

from moefabric.config.experiment import ExperimentSpec
from moefabric.config.guarded_policy import guarded_policy
from moefabric.config.loader import load_experiment
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.runner.control_time import ExpectedControl
from moefabric.runner.forecast import TaskPlanner, links_goodput
from moefabric.runner.hybrid_jobs import HybridJobs
from moefabric.runner.jobs import Jobs, ListedJobs
from moefabric.runner.workload_loader import workload_on
from moefabric.simulator.event_simulation import simulate_iterations
from moefabric.workload.iteration import Collective
from moefabric.workload.substitution import Substitutions
from tests.support.paths import EXAMPLES

HYBRID = EXAMPLES / "hybrid.yaml"
SCALE = Scale(bytes=250, dilation=16)
Key = tuple[str, str, int, int]


def hybrid(*settings: str, fabric: int = 0) -> tuple[ExperimentSpec, HybridJobs]:
    spec = load_experiment(HYBRID, settings)
    return spec, HybridJobs.of(spec, spec.fabrics[fabric], "part", SCALE, EXAMPLES)


def all_to_alls(
    spec: ExperimentSpec, jobs: ListedJobs, fabric: int = 0
) -> tuple[float, Mapping[Key, float]]:
    """Return the seconds of the first iteration, and of each all-to-all of the region r1."""
    policy = guarded_policy(spec.fabrics[fabric].policy)
    control = ExpectedControl.fixed(spec.control_s)
    planner = TaskPlanner(
        jobs.fabric, policy, CircuitSet(), moves=policy.reconfigures, control=control
    )
    [job] = jobs.all
    [planned] = planner.plan([jobs.tasks(job, 0, Substitutions())])
    steps = [one.step for one in planned]
    [[times]] = simulate_iterations([[steps]], links_goodput(jobs.fabric, steps))
    seconds = {
        (work.kind, work.direction, work.layer, one.task.micro_batch): at.seconds
        for one, at in zip(planned, times, strict=True)
        for work in [one.task.work]
        if isinstance(work, Collective) and one.task.region == "r1"
    }
    return max(at.end_s for at in times), seconds


def errors(expected: Mapping[Key, float], found: Mapping[Key, float]) -> list[float]:
    assert expected.keys() == found.keys()
    return [found[key] / expected[key] - 1 for key in expected]


@pytest.mark.parametrize("fabric", [0, 1])
def test_region_takes_as_long_as_in_the_whole_cluster(fabric: int) -> None:
    spec, jobs = hybrid(fabric=fabric)
    iteration_s, whole = all_to_alls(spec, jobs.whole, fabric)
    hybrid_s, own = all_to_alls(spec, jobs, fabric)
    assert hybrid_s == pytest.approx(iteration_s, rel=0.03)
    assert median(map(abs, errors(whole, own))) < 0.01
    assert max(map(abs, errors(whole, own))) < 0.05


def test_without_background_the_region_is_too_fast() -> None:
    spec, jobs = hybrid("hybrid.background=none")
    _, whole = all_to_alls(spec, jobs.whole)
    _, own = all_to_alls(spec, jobs)
    assert min(errors(whole, own)) < -0.2


def test_cluster_of_equal_replicas_is_simulated_by_few() -> None:
    """The region takes as long as in a simulation of all replicas."""
    settings = ["gating.noise=0", "training.dp=9", "wiring.regions=[{count: 18, servers: 4}]"]
    spec, few = hybrid(*settings)
    assert len(few.whole.regions) < len(few.simulated.whole.wiring.expanded_regions) == 18
    cluster = spec.build_fabric(spec.fabrics[0], "whole", SCALE)
    every = Jobs.of(spec, cluster, workload_on(spec, cluster, EXAMPLES))
    iteration_s, own = all_to_alls(spec, every)
    hybrid_s, few_own = all_to_alls(spec, few)
    assert hybrid_s == pytest.approx(iteration_s, rel=0.01)
    assert few_own == pytest.approx(own, rel=0.02)


def test_region_that_is_not_simulated_cannot_be_emulated() -> None:
    settings = ["gating.noise=0", "training.dp=9", "wiring.regions=[{count: 18, servers: 4}]"]
    with pytest.raises(SpecError, match=r"hybrid.emulated\[0\]: r17: the first \d+ regions"):
        hybrid(*settings, "hybrid.emulated=[r17]")


def test_warm_up_stays_in_emulated_regions() -> None:
    _, jobs = hybrid()
    [(job, programme)] = jobs.warm_up.items()
    assert [region.name for region in job.regions] == ["r1"]
    assert {task.regions for task in programme(0, Substitutions())} == {("r1",)}


def test_jobs_of_both_kinds_list_the_same_things() -> None:
    _, jobs = hybrid()
    listed: list[ListedJobs] = [jobs, jobs.whole]
    assert isinstance(listed[1], Jobs)
    assert all(pair for one in listed for pair in one.server_pairs_between_regions)
