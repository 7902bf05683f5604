"""CPU time of planning: Algorithm 1, joint, multihop, Copilot's fit and 16 regions.

Everything here computes and nothing waits: CPU seconds are asserted, so that other load on the
machine isn't measured.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import flows
from moefabric.core.forwarding import relay_trees
from moefabric.planner.arrays import Array, circuit_counts
from moefabric.planner.deadline_circuits import deadline_bound_s
from moefabric.planner.joint import best_circuits
from moefabric.planner.mixnet import algorithm1_order, htsim_order
from moefabric.planner.multihop import least_s, multihop_split, relay_linear_program
from moefabric.planner.pair_order import PairOrder
from moefabric.planner.plan import plan
from moefabric.planner.robust_split import assumed_split, robust_split
from moefabric.planner.waterfill import EpsLinks, completion_s
from moefabric.simulator.fluid import bound_s, predict
from tests.bench.recording import record
from tests.support.paths import EXAMPLES
from tests.support.planner_cases import circuit_rate, demand_matrix, fabric, forwarding_fabric
from tests.support.policies import POLICIES

TRACE = EXAMPLES / "data/training-1200-steps.npz"
SHAPES = ("skewed", "pareto", "sparse")


def cpu_seconds(function: Callable[[], object], rounds: int = 9) -> tuple[float, float]:
    """Return the least and the median CPU seconds of a call."""
    durations = []
    for _ in range(rounds):
        start = process_time()
        function()
        durations.append(process_time() - start)
    return min(durations), median(durations)


@pytest.mark.parametrize("order", [algorithm1_order, htsim_order], ids=["paper", "htsim"])
def test_algorithm1_for_128_servers_takes_10_ms_or_less(order: PairOrder) -> None:
    demand = demand_matrix(128, 1, "pareto")
    least_s, median_s = cpu_seconds(lambda: order(demand + demand.T, [6] * 128))
    print("\nAlgorithm 1, 128 servers, 6 optical NICs:", end=" ")
    print(f"{least_s * 1e3:.1f} ms least, {median_s * 1e3:.1f} ms median")
    name = f"Algorithm 1 for 128 servers, CPU, {order.__name__.removesuffix('_order')}"
    record(f"{name}: least", "ms", least_s, n=9, at_most=0.01)
    record(f"{name}: p50", "ms", median_s, n=9)
    assert least_s <= 0.010


def search(servers: int, seed: int, shape: str) -> tuple[float, float, float, float]:
    """Return CPU seconds of a search; then Algorithm 1's end, the joint end and their bound."""
    wired, ports = fabric(1, servers), np.full(servers, 6)
    links, rate = EpsLinks.of(wired, wired.servers), circuit_rate(wired)
    owed = demand_matrix(servers, seed, shape)
    start = process_time()
    joint = best_circuits(owed, ports, rate, links)
    duration = process_time() - start
    greedy = circuit_counts(servers, algorithm1_order(owed + owed.T, ports.tolist()))
    greedy_s, joint_s = (
        completion_s(owed, counts.astype(np.float64) * rate, links) for counts in (greedy, joint)
    )
    bound_s = deadline_bound_s(owed, ports, rate, links, joint_s, 1e-4)
    return duration, greedy_s, joint_s, bound_s


def test_joint_for_16_servers_takes_100_ms_or_less_and_is_never_worse_than_algorithm1() -> None:
    results = [search(16, seed, shape) for shape in SHAPES for seed in range(4)]
    durations = [duration for duration, *_ in results]
    gains = [greedy_s / joint_s for _, greedy_s, joint_s, _ in results]
    print("\njoint, 16 servers:", end=" ")
    print(f"{median(durations) * 1e3:.0f} ms median, {max(durations) * 1e3:.0f} ms most")
    print("  Algorithm 1's time to joint's: " + " ".join(f"{gain:.2f}" for gain in gains))
    record("search of `joint` for 16 servers, CPU, p50", "ms", samples=durations, at_most=0.1)
    record("Algorithm 1's end relative to `joint`'s, p50", "", samples=gains, at_least=1)
    assert min(gains) >= 1 - 1e-9
    assert median(durations) <= 0.100


@pytest.mark.parametrize("servers", [8, 16, 32, 64, 128])
def test_joint_comes_near_the_bound_in_150_ms_or_less(servers: int) -> None:
    """The bound is a time below which no circuits end, each carrying one pair's bytes."""
    print(f"\njoint, {servers} servers: CPU ms; Algorithm 1's and joint's time to the bound")
    medians, greatest = list[float](), list[float]()
    for shape in SHAPES:
        results = [search(servers, seed, shape) for seed in range(3)]
        duration = median(duration for duration, *_ in results)
        before = [greedy_s / bound_s for _, greedy_s, _, bound_s in results]
        after = [joint_s / bound_s for _, _, joint_s, bound_s in results]
        print(f"  {shape:>7} {1e3 * duration:5.0f} {median(before):6.2f}", end=" ")
        print(f"{median(after):6.3f}, at most {max(after):.3f}")
        medians.append(duration)
        greatest.append(max(after))
        assert max(after) <= max(before) * (1 + 1e-9)
        assert duration <= 0.150
    name, end = "search of `joint`, CPU, slowest kind of demand, p50", f"{servers} servers"
    record(f"{name}: {end}", "ms", max(medians), samples=medians, at_most=0.15)
    record(f"end of `joint`'s circuits relative to a bound, greatest: {end}", "", max(greatest))


def training_demand(servers: int, seed: int) -> Array:
    """Return bytes [from, to] of a training step; regions of 16 and 32 servers repeat its ranks."""
    draw, counts = np.random.default_rng(seed), np.load(TRACE)["counts"]
    tokens = counts[draw.integers(len(counts)), draw.integers(counts.shape[1])].astype(np.float64)
    copies = servers // 8
    ranks = np.tile(tokens, (copies, max(1, copies // 2)))
    ranks *= draw.lognormal(0.0, 0.05, ranks.shape)
    experts = ranks[:, draw.permutation(ranks.shape[1])]
    owed: Array = experts.reshape(servers, servers, -1).sum(axis=2) * 1e6
    np.fill_diagonal(owed, 0.0)
    return owed


@pytest.mark.parametrize(("servers", "most_ms"), [(8, 5.0), (16, 50.0), (32, 50.0)])
@pytest.mark.parametrize("optical", [6, 7])
def test_multihop_splits_within_a_hundredth_of_the_program_in_5_to_50_ms(
    servers: int, optical: int, most_ms: float
) -> None:
    """The circuits stand: the first split over them takes a few milliseconds more."""
    wired = replace(fabric(1, servers, optical, 8 - optical), forwarding=True)
    region = wired.regions[0]
    nothing = DemandMatrix(region.servers, np.zeros((servers, servers)))
    lit = POLICIES["multihop"].circuits(wired, region, nothing, CircuitSet())
    lp = relay_linear_program(wired, region.servers, lit)
    print(f"\nmultihop, {servers} servers, {optical}+{8 - optical} NICs:", end=" ")
    print("CPU ms, time to that of the LP (its CPU ms) and to the bound, bytes forwarded")
    greatest = list[float]()
    for shape in ("training", "uniform", *SHAPES):
        durations, ratios, exact_ms, bounds, forwarded = [], [], [], [], []
        for seed in range(5 if servers < 32 else 3):
            match shape:
                case "training":
                    owed = training_demand(servers, seed)
                case "uniform":
                    owed = 1e9 * (1.0 - np.eye(servers))
                case _:
                    owed = demand_matrix(servers, seed, shape)
            demand = DemandMatrix(region.servers, owed)
            split = multihop_split(wired, demand, lit)
            durations.append(1e3 * cpu_seconds(partial(multihop_split, wired, demand, lit), 5)[0])
            start = process_time()
            exact = lp.split(owed, exact=True)
            exact_ms.append(1e3 * (process_time() - start))
            predicted_s = predict(wired, lit, flows(wired, lit, split)).seconds
            ratios.append(predicted_s / exact.seconds)
            bounds.append(predicted_s / lp.bound_s(owed))
            forwarded.append(100 * split.forwarded_bytes / demand.total_bytes)
        print(
            f"  {shape:>8} {median(durations):5.1f}, at most {max(durations):5.1f}; "
            f"{max(ratios):.4f} ({median(exact_ms):.0f}); {median(bounds):.3f}; "
            f"{median(forwarded):.1f} %"
        )
        greatest.append(max(ratios))
        if shape == "training":
            name = f"`multihop`'s split over circuits that stand, {optical} optical NICs, CPU, p50"
            samples = [ms / 1e3 for ms in durations]
            record(f"{name}: {servers} servers", "ms", samples=samples, at_most=most_ms / 1e3)
        assert max(ratios) <= 1.01
        assert median(durations) <= most_ms
    name = f"`multihop`'s time relative to the linear program's, {optical} optical NICs, greatest"
    record(f"{name}: {servers} servers", "", max(greatest), samples=greatest, at_most=1.01)


@pytest.mark.parametrize(("servers", "most_ms"), [(4, 8.0), (8, 12.0), (16, 40.0)])
@pytest.mark.parametrize("policy", ["multihop", "mixnet-multihop"])
def test_first_split_over_new_circuits_takes_8_to_40_ms(
    servers: int, policy: str, most_ms: float
) -> None:
    """It builds trees, paths and linear program, which later splits use again.

    With 7 optical NICs, and with those of a full mesh and up to 3 more.
    """
    print(f"\n{policy}, {servers} servers: CPU ms of the first split and later ones, least, median")
    mesh = servers - 1
    for optical in sorted({7, *range(mesh, min(mesh + 3, 16) + 1)}):
        wired, firsts, laters = forwarding_fabric(servers, optical, 1), list[float](), list[float]()
        for seed in range(12):
            owed = demand_matrix(servers, seed, ("skewed", "pareto")[seed % 2])
            demand = DemandMatrix(wired.servers, owed)
            lit = POLICIES[policy].circuits(wired, wired.regions[0], demand, CircuitSet())
            split = partial(multihop_split, wired, demand, lit)
            relay_linear_program.cache_clear()
            relay_trees.cache_clear()
            firsts.append(1e3 * cpu_seconds(split, 1)[0])
            laters.append(1e3 * cpu_seconds(split, 3)[0])
        print(f"  {optical:>2}+1 NICs: {min(firsts):5.2f} {median(firsts):5.2f};", end=" ")
        print(f"{min(laters):5.2f} {median(laters):5.2f}")
        if optical == 7:
            samples, name = [ms / 1e3 for ms in firsts], f"first split of `{policy}`, 7+1 NICs, CPU"
            record(f"{name}, p50: {servers} servers", "ms", samples=samples, at_most=most_ms / 1e3)
            record(f"{name}, least: {servers} servers", "ms", min(samples), n=len(samples))
        assert median(firsts) <= most_ms


def test_robust_split_of_eight_steps_suits_the_next_one_in_50_ms() -> None:
    """Steps of the training run on 8 servers in a mesh; times relative to the busiest server's."""
    wired = replace(fabric(1, 8, 7, 1), forwarding=True)
    region, counts = wired.regions[0], np.load(TRACE)["counts"]

    def demand(step: int, layer: int) -> DemandMatrix:
        return DemandMatrix(region.servers, counts[step, layer].reshape(8, 8, 2).sum(axis=2) * 1e6)

    lit = POLICIES["multihop"].circuits(wired, region, demand(0, 0), CircuitSet())
    places = [(step, layer) for step in (60, 200, 400, 600, 800, 1000, 1150) for layer in range(4)]

    def after(assumed: Callable[[list[DemandMatrix]], Sequence[DemandMatrix]]) -> tuple[float, str]:
        ratios, forwarded = [], []
        for step, layer in places:
            history = [demand(step - number, layer) for number in range(1, 17)]
            owed = demand(step, layer)
            split = assumed_split(wired, multihop_split, owed, lit, assumed(history) or (owed,))
            predicted_s = predict(wired, lit, flows(wired, lit, split)).seconds
            ratios.append(predicted_s / bound_s(wired, owed))
            forwarded.append(100 * split.forwarded_bytes / owed.total_bytes)
        text = f"{np.mean(ratios):.2f}, at most {max(ratios):.2f}; {np.mean(forwarded):.1f} %"
        return float(np.mean(ratios)), text

    def total(history: list[DemandMatrix]) -> Sequence[DemandMatrix]:
        relative = [step.array / step.port_bytes.max() for step in history[:8]]
        return (DemandMatrix(region.servers, 1e9 * sum(relative)),)

    print("\nsplit for earlier steps: time of the next step to its bound, bytes forwarded")
    found = {}
    for name, assumed in {
        "itself": lambda _: (),
        "the last": lambda history: history[:1],
        "the sum of 8": total,
        "2 steps": lambda history: history[:2],
        "4 steps": lambda history: history[:4],
        "8 steps": lambda history: history[:8],
        "16 steps": lambda history: history[:16],
    }.items():
        found[name], text = after(assumed)
        what = "next step's time relative to its bound, mean of splits for earlier steps"
        record(f"{what}: {name}", "", found[name], n=len(places))
        print(f"  {name:>12} {text}")
    eight = [demand(step, 0) for step in range(8)]
    robust_split(wired, eight, lit)
    least_s, _ = cpu_seconds(partial(robust_split, wired, eight, lit))
    print(f"  robust split of 8 steps: {1e3 * least_s:.0f} ms")
    record("robust split of 8 steps, CPU, least", "ms", least_s, n=9, at_most=0.05)
    assert found["itself"] < found["8 steps"] < 0.9 * found["the last"]
    assert found["8 steps"] < 0.9 * found["the sum of 8"]
    assert least_s <= 0.050


@pytest.mark.parametrize(("servers", "most_ms"), [(8, 100.0), (16, 500.0), (32, 1000.0)])
def test_joint_multihop_compares_circuits_in_100_to_1000_ms(servers: int, most_ms: float) -> None:
    """Where moving takes no time, all candidates are compared; else few are as a rule."""
    wired = replace(fabric(1, servers, 7, 1), forwarding=True)
    region, policy = wired.regions[0], POLICIES["joint-multihop"]
    nothing = DemandMatrix(region.servers, np.zeros((servers, servers)))
    lit = POLICIES["multihop"].circuits(wired, region, nothing, CircuitSet())
    durations, gains = [], []
    for seed in range(4):
        demand = DemandMatrix(region.servers, training_demand(servers, seed))
        choose = partial(policy.circuits, wired, region, demand, lit)
        durations.append(1e3 * cpu_seconds(choose, 1)[0])
        chosen = choose()
        gains.append(least_s(wired, demand, lit) / least_s(wired, demand, chosen))
    print(f"\njoint-multihop, {servers} servers: {median(durations):.0f} ms median,", end=" ")
    print(f"{max(durations):.0f} ms most; even circuits take", end=" ")
    print(" ".join(f"{gain:.3f}" for gain in gains) + " times as long")
    name = "planning of `joint-multihop` beside a standing mesh or expander, CPU, p50"
    samples = [ms / 1e3 for ms in durations]
    record(f"{name}: {servers} servers", "ms", samples=samples, at_most=most_ms / 1e3)
    assert min(gains) >= 0.99
    assert median(durations) <= most_ms


@pytest.mark.parametrize(
    ("experts", "iterations", "ratio"),
    [
        pytest.param(8, 500, 1, id="to-the-end"),
        pytest.param(16, 20, 2, id="twenty-of-its-hundred-steps"),
    ],
)
def test_copilot_fit_is_faster_than_slsqp(experts: int, iterations: int, ratio: float) -> None:
    """SLSQP's steps grow with the cube of the variables.

    With 16 experts, its first twenty steps alone take longer than the whole fit. A new process has
    one BLAS thread: with several, SLSQP's small matrices are slower by what their threads wait for
    each other, 1.5 to 18 times.
    """
    script = [sys.executable, str(Path(__file__).with_name("copilot_fit.py")), str(TRACE)]
    words = [*script, str(experts), str(iterations)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, check=True, timeout=60)
    one = json.loads(done.stdout)
    fit_ms, slsqp_ms = 1e3 * one["fit_s"], 1e3 * one["slsqp_s"]
    print(
        f"\nCopilot, {experts} experts: {fit_ms:.0f} ms, SLSQP {slsqp_ms:.0f} ms, "
        f"{slsqp_ms / fit_ms:.1f} times"
    )
    print(
        f"  loss {one['fit_loss']:.7f} (at most {one['fit_gap']:.0e} above the least), "
        f"SLSQP {one['slsqp_loss']:.7f}"
    )
    record(f"Copilot's fit, CPU: {experts} experts", "ms", one["fit_s"])
    name = f"CPU of SLSQP's {iterations} steps relative to Copilot's fit: {experts} experts"
    record(name, "", slsqp_ms / fit_ms, at_least=ratio)
    assert one["fit_loss"] <= one["slsqp_loss"] * (1 + 1e-5)
    assert slsqp_ms >= ratio * fit_ms


@pytest.mark.parametrize("policy", ["mixnet", "spill", "joint"])
def test_sixteen_regions_of_eight_servers_and_seven_layers_take_under_five_seconds(
    policy: str,
) -> None:
    """Circuits, split and prediction of each region, for the layers of a pipeline stage."""
    wired = fabric(16, 8)
    start = process_time()
    for layer in range(7):
        for number, region in enumerate(wired.regions):
            rows = demand_matrix(8, 100 * layer + number, "skewed")
            demand = DemandMatrix(region.servers, rows)
            plan(wired, region, demand, POLICIES[policy], CircuitSet())
    duration = process_time() - start
    print(f"\n{policy}: 16 regions x 8 servers x 7 layers in {duration:.2f} s")
    name = f"plans of 16 regions of 8 servers for 7 layers, CPU: {policy}"
    record(name, "s", duration, at_most=5)
    assert duration <= 5.0
