"""Hybrid runs in the model: emulated regions proceed as in the whole cluster."""

from statistics import median

import pytest

from moefabric.core.errors import SpecError
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import workload_on
from moefabric.workload.iterations.substitution import Substitutions
from tests.support.hybrid_lab import SCALE, completions, errors, hybrid
from tests.support.paths import EXAMPLES

NINE_REPLICAS = ["gating.noise=0", "training.dp=9", "wiring.regions=[{count: 18, servers: 4}]"]


@pytest.mark.parametrize("fabric", [0, 1])
def test_region_takes_as_long_as_in_the_whole_cluster(fabric: int) -> None:
    spec, jobs = hybrid(fabric=fabric)
    iteration_s, whole = completions(spec, jobs.whole, fabric)
    hybrid_s, own = completions(spec, jobs, fabric)
    assert hybrid_s == pytest.approx(iteration_s, rel=0.01)
    assert max(map(abs, errors(whole, own))) < 0.03


@pytest.mark.parametrize("background", ["average", "none"])
def test_region_takes_another_time_without_the_rates_of_the_model(background: str) -> None:
    spec, jobs = hybrid([f"hybrid.background={background}"])
    _, whole = completions(spec, jobs.whole)
    _, own = completions(spec, jobs)
    assert median(map(abs, errors(whole, own))) > 0.03


def test_cluster_of_equal_replicas_is_simulated_by_few() -> None:
    """The region takes as long as in a simulation of all replicas."""
    spec, few = hybrid(NINE_REPLICAS)
    assert len(few.whole.regions) < len(few.simulated.whole.wiring.expanded_regions) == 18
    cluster = spec.build_fabric(spec.fabrics[0], "whole", SCALE)
    every = Jobs.of(spec, cluster, workload_on(spec, cluster, EXAMPLES))
    iteration_s, own = completions(spec, every)
    hybrid_s, few_own = completions(spec, few)
    assert hybrid_s == pytest.approx(iteration_s, rel=0.01)
    assert few_own == pytest.approx(own, rel=0.02)


def test_region_that_is_not_simulated_cannot_be_emulated() -> None:
    with pytest.raises(
        SpecError, match=r"hybrid.emulated\[0\]: r17: the model has \d+ regions for all"
    ):
        hybrid([*NINE_REPLICAS, "hybrid.emulated=[r17]"])


def test_warm_up_stays_in_emulated_regions() -> None:
    _, jobs = hybrid()
    [(job, programme)] = jobs.warm_up.items()
    assert [region.name for region in job.regions] == ["r1"]
    assert {task.regions for task in programme(0, Substitutions())} == {("r1",)}
