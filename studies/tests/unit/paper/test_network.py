"""Networks of the paper's tables: all-to-alls of a region, and the iterations composed of them."""

from dataclasses import replace

import numpy as np
import pytest
from moefabric_studies.paper.calibration import calibrate
from moefabric_studies.paper.failures import slow_down
from moefabric_studies.paper.iteration import Iteration, compose_iteration
from moefabric_studies.paper.job import FloatArray, PaperJob
from moefabric_studies.paper.loader import load_jobs
from moefabric_studies.paper.network import (
    MTU,
    NETWORKS,
    SERVERS_PER_LEAF,
    AllToAll,
    PaperNetwork,
    PlanningPolicy,
    forwarding_s,
    networks_with,
    nic_bytes_s,
    oversubscribed_all_to_all,
    single_path_s,
    with_server_times,
)
from moefabric_studies.paper.shares import rank_expert_tokens

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.server_paths import ServerPaths
from moefabric.core.topology import Fabric, Region
from moefabric.planner.plan import plan
from tests.support.paths import EXAMPLES
from tests.support.policies import POLICIES


def predict_iteration(job: PaperJob, network: PaperNetwork, rate_bps: float) -> Iteration:
    """Return the iteration of a job on a network."""
    all_to_all = network.all_to_all(job, rate_bps)
    return compose_iteration(job, all_to_all, network.eps_bytes_s(rate_bps))


JOBS = load_jobs(EXAMPLES / "paper/jobs.yaml")
RATE = 100e9


def region_fabric(job: PaperJob, optical: int, eps: Eps) -> Fabric:
    names = tuple(f"s{i}" for i in range(job.servers))
    ocs = Ocs("ocs0", job.servers * optical) if optical else None
    return Fabric("f", (Region("r0", 0, names, ocs),), 8, optical, 8 - optical, RATE, eps, mtu=MTU)


def planned_s(fabric: Fabric, demand: DemandMatrix, policy: str) -> float:
    return plan(fabric, fabric.regions[0], demand, POLICIES[policy], CircuitSet()).predicted_s


@pytest.mark.parametrize(
    ("network", "policy", "optical"),
    [("fat-tree", "eps", 0), ("mixnet", "mixnet", 6), ("mixnet-spill", "spill", 6)],
)
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_all_to_all_lasts_as_long_as_planner_predicts(
    job: PaperJob, network: str, policy: str, optical: int
) -> None:
    fabric = region_fabric(job, optical, Eps(99))
    all_to_all = NETWORKS[network].all_to_all(job, RATE)
    dispatch = DemandMatrix(fabric.servers, job.dispatch_bytes)
    combine = DemandMatrix(fabric.servers, job.combine_bytes)
    assert all_to_all.dispatch_s == pytest.approx(planned_s(fabric, dispatch, policy))
    assert all_to_all.combine_s == pytest.approx(planned_s(fabric, combine, policy))


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_oversubscribed_all_to_all_lasts_as_long_as_fluid_model_predicts(job: PaperJob) -> None:
    fabric = region_fabric(job, 0, Eps(SERVERS_PER_LEAF, 8, 3.0))
    dispatch = DemandMatrix(fabric.servers, job.dispatch_bytes)
    all_to_all = NETWORKS["oversubscribed"].all_to_all(job, RATE)
    assert all_to_all.dispatch_s == pytest.approx(planned_s(fabric, dispatch, "eps"))


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_no_network_is_faster_than_its_nics(job: PaperJob) -> None:
    demand = job.dispatch_bytes
    busiest = max(demand.sum(axis=0).max(), demand.sum(axis=1).max())
    least_s = busiest / (8 * nic_bytes_s(RATE)) * (1 - 1e-9)
    for network in NETWORKS.values():
        assert network.all_to_all(job, RATE).dispatch_s >= least_s


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_slowest_nic_of_a_gpu_ends_an_all_to_all_on_trees(job: PaperJob) -> None:
    networks = networks_with("nic-per-gpu")
    ranks = job.training.ep // job.servers
    home = np.arange(job.training.ep) // ranks
    owed = job.token_matrix * (job.dispatch_bytes / tokens_by_server(job))[np.ix_(home, home)]
    owed[home[:, None] == home] = 0.0
    busiest = max(owed.sum(axis=0).max(), owed.sum(axis=1).max())
    nic_s = busiest / job.training.tp / nic_bytes_s(RATE)
    assert networks["fat-tree"].all_to_all(job, RATE).dispatch_s == pytest.approx(nic_s)
    narrow_s = NETWORKS["oversubscribed"].all_to_all(job, RATE).dispatch_s
    narrow = networks["oversubscribed"].all_to_all(job, RATE)
    assert narrow.dispatch_s == pytest.approx(max(nic_s, narrow_s))
    assert networks["mixnet"] is NETWORKS["mixnet"]


def tokens_by_server(job: PaperJob) -> FloatArray:
    ranks = job.training.ep // job.servers
    summed: FloatArray = job.token_matrix.reshape(job.servers, ranks, -1, ranks).sum(axis=(1, 3))
    return summed


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_jobs_fill_1024_gpus(job: PaperJob) -> None:
    assert job.gpus == 1024


@pytest.mark.parametrize("name", NETWORKS)
def test_all_to_all_is_inversely_proportional_to_rate(name: str) -> None:
    slow, fast = (NETWORKS[name].all_to_all(JOBS["deepseek-r1"], rate) for rate in (100e9, 800e9))
    assert (slow.dispatch_s, slow.combine_s) == pytest.approx(
        (8 * fast.dispatch_s, 8 * fast.combine_s)
    )
    assert (slow.circuits == fast.circuits).all()


def small_job(gating: list[list[int]], **changes: object) -> PaperJob:
    base = JOBS["mixtral-8x22b"]
    n = len(gating)
    model = replace(base.model, experts=n, layers=2, vocabulary=0)
    training = replace(base.training, ep=n)
    job = replace(base, model=model, training=training, gating=np.array(gating), pp=1, dp=1)
    return replace(job, **changes)  # type: ignore[arg-type]


def test_dispatch_bytes_are_tokens_times_their_width() -> None:
    job = small_job([[1, 3], [2, 2]])
    tokens = 8 * 4096 * 2
    assert job.dispatch_bytes.tolist() == [
        [0.0, tokens * 0.75 * 12288],
        [tokens * 0.5 * 12288, 0.0],
    ]


def test_iteration_repeats_layers_and_micro_batches() -> None:
    job = small_job([[1, 1], [1, 1]], micro_batches=3)
    iteration = compose_iteration(job, AllToAll(0.5, 0.25), 1e12, blocked_s=0.1)
    assert iteration.compute_s == pytest.approx(3 * 2 * job.layer_compute_s)
    assert iteration.all_to_all_s == pytest.approx(3 * 2 * 2 * 0.75)
    assert iteration.blocked_s == pytest.approx(3 * 2 * 0.1)
    assert iteration.pipeline_s == 0.0
    assert iteration.straggler_s == 0.0
    assert iteration.seconds == pytest.approx(
        iteration.compute_s + iteration.all_to_all_s + iteration.blocked_s + iteration.all_reduce_s
    )


def test_average_rank_waits_for_the_busiest_experts() -> None:
    """Rank 0 gets three of four tokens: the average rank waits for half an average's compute."""
    even, uneven = (small_job(gating, micro_batches=3) for gating in ([[1, 1]] * 2, [[3, 1]] * 2))
    iterations = [compose_iteration(job, AllToAll(0.5, 0.25), 1e12) for job in (even, uneven)]
    assert iterations[0].compute_s == pytest.approx(iterations[1].compute_s)
    flops = 3 * 65536 * even.model.expert_flops()
    waited_s = 0.5 * 3 * 2 * flops / even.training.rank_flops
    assert iterations[1].straggler_s == pytest.approx(waited_s)
    assert iterations[1].seconds - iterations[0].seconds == pytest.approx(waited_s)
    assert iterations[0].all_to_all_call_share == iterations[0].all_to_all_share
    assert iterations[1].all_to_all_call_share == pytest.approx(
        (waited_s + iterations[1].all_to_all_s) / iterations[1].seconds
    )


def test_pipeline_fills_and_drains_once() -> None:
    job = small_job([[1, 1], [1, 1]], micro_batches=3, pp=2)
    iteration = compose_iteration(job, AllToAll(0.0, 0.0), 1e9)
    assert iteration.compute_s == pytest.approx(4 * 1 * job.layer_compute_s)
    assert iteration.pipeline_s == pytest.approx(2 * 8 * 4096 * 12288 / 1e9)


def test_slowest_stage_determines_time_of_further_micro_batches() -> None:
    """5 layers on 2 stages: 3 and 2, with the head on the last one."""
    job = small_job([[1, 1], [1, 1]], micro_batches=3, pp=2)
    longer = replace(job, model=replace(job.model, layers=5))
    iteration = compose_iteration(longer, AllToAll(0.5, 0.25), 1e12)
    assert longer.stage_layers == 3
    assert iteration.compute_s == pytest.approx((5 + 2 * 3) * job.layer_compute_s)
    assert iteration.all_to_all_s == pytest.approx((5 + 2 * 3) * 2 * 0.75)
    headed = replace(longer, model=replace(longer.model, vocabulary=10_000_000))
    head_s = headed.other_compute_s(headed.stages[1])
    iteration = compose_iteration(headed, AllToAll(0.5, 0.25), 1e12)
    assert iteration.compute_s == pytest.approx((5 + 2 * 2) * job.layer_compute_s + 3 * head_s)
    assert iteration.all_to_all_s == pytest.approx((5 + 2 * 2) * 2 * 0.75)


def test_all_reduce_overlaps_with_last_backward_pass_except_one_layer() -> None:
    job = small_job([[1, 1], [1, 1]], dp=2)
    fast_s, slow_s = (
        compose_iteration(job, AllToAll(0.0, 0.0), bytes_s).all_reduce_s for bytes_s in (1e12, 1e6)
    )
    assert fast_s == pytest.approx(job.gradient_bytes / 1e12 / 2)
    hidden_s = job.layer_times(directions=("backward",)).seconds
    assert slow_s == pytest.approx(job.gradient_bytes / 1e6 - hidden_s)


def test_pair_without_circuit_is_forwarded() -> None:
    demand, light = np.zeros((3, 3)), np.zeros((3, 3))
    demand[0, 2], demand[0, 1] = 6.0, 4.0
    light[0, 1] = light[1, 0] = light[1, 2] = light[2, 1] = 2.0
    assert forwarding_s(demand, light) == 5.0
    assert forwarding_s(demand, np.zeros((3, 3))) == float("inf")


def test_pair_without_circuit_uses_one_shortest_path() -> None:
    demand, light = np.zeros((4, 4)), np.zeros((4, 4))
    for a, b in ((0, 1), (1, 3), (0, 2), (2, 3)):
        light[a, b] = light[b, a] = 2.0
    demand[0, 3], demand[0, 1] = 8.0, 2.0
    assert single_path_s(demand, light) == 5.0
    assert forwarding_s(demand, light) == 3.0
    assert single_path_s(demand, np.zeros((4, 4))) == float("inf")


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_narrow_uplinks_of_each_server_triple_the_all_to_all(job: PaperJob) -> None:
    base = NETWORKS["fat-tree"].all_to_all(job, RATE)
    narrow = oversubscribed_all_to_all(job, RATE)
    assert narrow.layer_s == pytest.approx(3 * base.layer_s, rel=1e-3)
    shared = oversubscribed_all_to_all(job, RATE, servers_per_leaf=job.servers)
    assert shared.layer_s == pytest.approx(base.layer_s)


def test_calibration_finds_utilisation_of_column() -> None:
    job = JOBS["mixtral-8x7b"].with_utilisation(1.3)
    column = {
        rate: predict_iteration(job, NETWORKS["fat-tree"], rate).seconds / 7.0
        for rate in (100e9, 200e9, 400e9, 800e9)
    }
    calibrated = calibrate(JOBS["mixtral-8x7b"], column)
    assert calibrated.job.training.utilisation == pytest.approx(1.3, rel=1e-3)
    assert calibrated.unit_s == pytest.approx(7.0, rel=1e-3)
    assert calibrated.error < 1e-3


def test_calibration_depends_on_column_only() -> None:
    column = {100e9: 2.0, 400e9: 1.2}
    job = JOBS["mixtral-8x22b"]
    assert calibrate(job, column).job.training.utilisation == pytest.approx(
        calibrate(job.with_utilisation(2.0), column).job.training.utilisation, rel=1e-3
    )


@pytest.mark.parametrize("failed", ["nic", "gpu"])
@pytest.mark.parametrize("policy", ["mixnet", "spill", "joint"])
def test_failure_slows_iteration_down(failed: str, policy: PlanningPolicy) -> None:
    assert slow_down(JOBS["mixtral-8x22b"], 400e9, failed, policy) > 0


def test_joint_planner_loses_little_with_a_nic_or_a_server() -> None:
    """With Algorithm 1, a server without light is fully exposed to failures."""
    assert slow_down(JOBS["deepseek-r1"], 400e9, "nic", "mixnet") > 0.1
    assert slow_down(JOBS["deepseek-r1"], 400e9, "nic", "joint") < 0.05
    assert -1e-6 < slow_down(JOBS["deepseek-r1"], 400e9, "server", "joint") < 0.1


def test_gpu_without_tensor_parallel_group_costs_nothing() -> None:
    assert slow_down(JOBS["llama-moe"], 400e9, "gpu") == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("name", "transfers", "calls"),
    [("mixtral-8x7b", 0.13, 0.58), ("llama-moe", 0.44, 0.51), ("qwen-moe", 0.26, 0.31)],
)
def test_shares_of_all_to_alls_in_production(name: str, transfers: float, calls: float) -> None:
    """Section 3 measures 0.33 to 0.55, 0.42 to 0.58, and up to 0.68 of an iteration in calls."""
    job = load_jobs(EXAMPLES / "paper/measured.yaml")[name]
    iteration = predict_iteration(job, NETWORKS["rail-optimised"], 400e9)
    assert iteration.all_to_all_share == pytest.approx(transfers, abs=0.005)
    assert iteration.all_to_all_call_share == pytest.approx(calls, abs=0.005)


def test_line_rate_would_have_to_fall_for_transfers_to_take_the_measured_share() -> None:
    job, network = load_jobs(EXAMPLES / "paper/measured.yaml")["mixtral-8x7b"], "rail-optimised"
    all_to_all, eps_bytes_s = (
        NETWORKS[network].all_to_all(job, 400e9),
        NETWORKS[network].eps_bytes_s(400e9),
    )
    for slower, share in ((3.3, 0.33), (8.2, 0.55)):
        iteration = compose_iteration(job, all_to_all.scaled(slower), eps_bytes_s)
        assert iteration.all_to_all_share == pytest.approx(share, abs=0.005)
    for utilisation in (0.3, 0.6):
        iteration = compose_iteration(job.with_utilisation(utilisation), all_to_all, eps_bytes_s)
        assert iteration.all_to_all_call_share == pytest.approx(0.58, abs=0.02)


def test_share_of_calls_grows_with_the_skew_of_ranks() -> None:
    """Qwen-MoE's gating is unknown; that of the training trace, sharpened, gives any share."""
    job = load_jobs(EXAMPLES / "paper/measured.yaml")["qwen-moe"]
    shares = job.gating / job.gating.sum(axis=1, keepdims=True)
    for power, skew, calls in ((1, 1.24, 0.31), (8, 4.3, 0.66)):
        gating = np.rint(1e6 * shares**power / (shares**power).sum(axis=1, keepdims=True))
        sharper = replace(job, gating=gating.astype(np.int64))
        tokens = rank_expert_tokens(sharper.model, sharper.training, sharper.gating)
        assert tokens.max() / tokens.mean() == pytest.approx(skew, rel=0.01)
        iteration = predict_iteration(sharper, NETWORKS["rail-optimised"], 400e9)
        assert iteration.all_to_all_call_share == pytest.approx(calls, abs=0.005)


@pytest.mark.parametrize("name", ["mixnet", "topoopt"])
def test_gathering_takes_longer_by_pcie_and_no_time_on_endless_nvlinks(name: str) -> None:
    job, network = JOBS["mixtral-8x22b"], NETWORKS[name]
    plain = network.all_to_all(job, RATE)

    def added_s(paths: ServerPaths, nvlink_bytes_s: float = 450e9) -> float:
        on = replace(job, training=replace(job.training, nvlink_bytes_s=nvlink_bytes_s))
        times = with_server_times(plain, on, network.optical, paths)
        assert times.combine_s - plain.combine_s == pytest.approx(
            job.model.combine_ratio * (times.dispatch_s - plain.dispatch_s)
        )
        return times.dispatch_s - plain.dispatch_s

    gathered_s = added_s(ServerPaths())
    assert 0 < gathered_s < 0.1 * plain.dispatch_s
    assert added_s(ServerPaths(gather="pcie")) > gathered_s
    assert added_s(ServerPaths(gather="none")) == 0
    assert added_s(ServerPaths(), 1e30) == pytest.approx(0, abs=1e-12)


def test_each_gpu_of_a_fat_tree_has_a_nic_so_that_nothing_is_gathered() -> None:
    job = JOBS["mixtral-8x22b"]
    plain = NETWORKS["fat-tree"].all_to_all(job, RATE)
    assert with_server_times(plain, job, 0, ServerPaths()) == plain
