"""The networks of the paper's tables: what a region's all-to-all takes on each, and how an iteration is made of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller.planner.plan import POLICIES, plan
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.paper import read
from moefabric.paper.calibration import calibrated
from moefabric.paper.failures import Plan, slow_down
from moefabric.paper.iteration import iteration, of
from moefabric.paper.job import Job
from moefabric.paper.network import MTU, NETWORKS, AllToAll, byte_rate, forwarded_s
from moefabric.topology import Eps, Fabric, Ocs, Region

EXAMPLES = Path(__file__).parents[2] / "examples/paper"
JOBS = read.jobs(EXAMPLES / "jobs.yaml")


@pytest.mark.parametrize(
    ("network", "policy", "optical"),
    [("fat-tree", "eps", 0), ("mixnet", "mixnet", 6), ("mixnet-spill", "spill", 6)],
)
@pytest.mark.parametrize("job", JOBS)
def test_a_network_takes_what_the_planner_predicts_of_it(
    job: str, network: str, policy: str, optical: int
) -> None:
    made = JOBS[job]
    names = tuple(f"s{i}" for i in range(made.servers))
    ocs = Ocs("ocs0", made.servers * optical) if optical else None
    wired = Fabric("f", (Region("r0", 0, names, ocs),), 8, optical, 8 - optical, 100e9, Eps(99), mtu=MTU)
    sent = NETWORKS[network].all_to_all(made, 100e9)
    for owed, seconds in ((made.owed, sent.dispatch_s), (made.owed.T, sent.combine_s)):
        demand = DemandMatrix(names, owed)
        planned = plan(wired, wired.regions[0], demand, POLICIES[policy], CircuitSet())
        assert seconds == pytest.approx(planned.predicted_s)


@pytest.mark.parametrize("job", JOBS)
def test_a_narrow_tree_takes_what_the_fluid_model_predicts_of_its_routes(job: str) -> None:
    made = JOBS[job]
    names = tuple(f"s{i}" for i in range(made.servers))
    wired = Fabric("f", (Region("r0", 0, names, None),), 8, 0, 8, 100e9, Eps(4, 8, 3.0), mtu=MTU)
    demand = DemandMatrix(names, made.owed)
    planned = plan(wired, wired.regions[0], demand, POLICIES["eps"], CircuitSet())
    assert NETWORKS["oversubscribed"].all_to_all(made, 100e9).dispatch_s == pytest.approx(planned.predicted_s)


@pytest.mark.parametrize("job", JOBS)
def test_no_network_is_faster_than_its_nics(job: str) -> None:
    made = JOBS[job]
    busiest = max(made.owed.sum(axis=0).max(), made.owed.sum(axis=1).max())
    for network in NETWORKS.values():
        assert network.all_to_all(made, 100e9).dispatch_s >= busiest / (8 * byte_rate(100e9)) * (1 - 1e-9)


@pytest.mark.parametrize("job", JOBS)
def test_every_job_fills_the_paper_s_1024_gpus(job: str) -> None:
    assert JOBS[job].gpus == 1024


def job(owed_shares: list[list[int]], **changes: object) -> Job:
    base = JOBS["mixtral-8x22b"]
    n = len(owed_shares)
    model = replace(base.model, experts=n, layers=2)
    training = replace(base.training, ep=n)
    made = replace(base, model=model, training=training, gating=np.array(owed_shares), pp=1, dp=1)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_owed_bytes_are_tokens_times_their_width() -> None:
    made = job([[1, 3], [2, 2]])
    tokens = 8 * 4096 * 2
    assert made.owed.tolist() == [[0.0, tokens * 0.75 * 12288], [tokens * 0.5 * 12288, 0.0]]


def test_an_iteration_is_its_layers_and_micro_batches() -> None:
    made = job([[1, 1], [1, 1]], micro_batches=3)
    whole = of(made, AllToAll(0.5, 0.25), 1e12, blocked_s=0.1)
    assert whole.compute_s == pytest.approx(3 * 2 * made.layer_compute_s)
    assert whole.all_to_all_s == pytest.approx(3 * 2 * 2 * 0.75)
    assert whole.blocked_s == pytest.approx(3 * 2 * 0.1)
    assert whole.pipeline_s == 0.0
    assert whole.seconds == pytest.approx(
        whole.compute_s + whole.all_to_all_s + whole.blocked_s + whole.all_reduce_s
    )


def test_a_pipeline_fills_and_drains_once() -> None:
    made = job([[1, 1], [1, 1]], micro_batches=3, pp=2)
    whole = of(made, AllToAll(0.0, 0.0), 1e9)
    assert whole.compute_s == pytest.approx(4 * 1 * made.layer_compute_s)
    assert whole.pipeline_s == pytest.approx(2 * 8 * 4096 * 12288 / 1e9)


def test_all_reduce_hides_behind_the_last_backward_pass_but_for_one_layer() -> None:
    made = job([[1, 1], [1, 1]], dp=2)
    fast, slow = (of(made, AllToAll(0.0, 0.0), bytes_s).all_reduce_s for bytes_s in (1e12, 1e6))
    assert fast == pytest.approx(made.gradient_bytes / 1e12 / 2)
    hidden = made.layer_compute_s * 2 / 3
    assert slow == pytest.approx(made.gradient_bytes / 1e6 - hidden)


def test_a_server_without_a_circuit_is_reached_through_one_that_has() -> None:
    owed, light = np.zeros((3, 3)), np.zeros((3, 3))
    owed[0, 2], owed[0, 1] = 6.0, 4.0
    light[0, 1] = light[1, 0] = light[1, 2] = light[2, 1] = 2.0
    assert forwarded_s(owed, light) == 5.0
    assert forwarded_s(owed, np.zeros((3, 3))) == float("inf")


def test_calibration_finds_the_speed_that_made_the_column() -> None:
    made = JOBS["mixtral-8x7b"].computing(1.3)
    column = {
        rate: iteration(made, NETWORKS["fat-tree"], rate).seconds / 7.0
        for rate in (100e9, 200e9, 400e9, 800e9)
    }
    fit = calibrated(JOBS["mixtral-8x7b"], column)
    assert fit.job.training.utilisation == pytest.approx(1.3, rel=1e-3)
    assert fit.unit_s == pytest.approx(7.0, rel=1e-3)
    assert fit.error < 1e-3


def test_calibration_looks_at_no_other_column() -> None:
    """Only what it is given: the fat-tree column, and the fat-tree."""
    column = {100e9: 2.0, 400e9: 1.2}
    made = JOBS["mixtral-8x22b"]
    assert calibrated(made, column).job.training.utilisation == pytest.approx(
        calibrated(made.computing(2.0), column).job.training.utilisation, rel=1e-3
    )


@pytest.mark.parametrize("failed", ["nic", "gpu"])
@pytest.mark.parametrize("plan", ["mixnet", "spill", "joint"])
def test_what_fails_takes_time(failed: str, plan: Plan) -> None:
    assert slow_down(JOBS["mixtral-8x22b"], 400e9, failed, plan) > 0


def test_a_region_planned_jointly_loses_little_with_a_nic_or_a_server() -> None:
    """Where demand is nearly even, Algorithm 1's server without light feels every failure in full."""
    assert slow_down(JOBS["deepseek-r1"], 400e9, "nic", "mixnet") > 0.3
    assert slow_down(JOBS["deepseek-r1"], 400e9, "nic", "joint") < 0.1
    assert -1e-6 < slow_down(JOBS["deepseek-r1"], 400e9, "server", "joint") < 0.1


def test_a_gpu_without_a_tensor_parallel_group_costs_nothing_more() -> None:
    assert slow_down(JOBS["llama-moe"], 400e9, "gpu") == pytest.approx(0.0)
