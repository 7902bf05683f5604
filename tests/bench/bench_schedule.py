"""Duration of predicting whole iterations and flows: 16 regions, 8 stages of 2 replicas."""

import time
from itertools import product
from random import Random

from moefabric.config.experiment import ExperimentSpec
from moefabric.core.routes import Link
from moefabric.core.units import Scale
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import workload_on
from moefabric.simulator.event_simulation import simulate_streams
from moefabric.simulator.fair_sharing import Stream
from moefabric.workload.iterations.substitution import Substitutions
from tests.bench.recording import record
from tests.support.paths import EXAMPLES


def spec(micro_batches: int, policy: str = "mixnet") -> ExperimentSpec:
    return ExperimentSpec.model_validate(
        {
            "experiment": "bench",
            "model": {"name": "mixtral-8x22b", "layers": 16},
            "training": {
                "ep": 8, "tp": 8, "pp": 8, "dp": 2, "micro_batches": micro_batches,
                "sequence": 4096, "micro_batch": 8, "iterations": 1,
            },
            "gating": {"matrix": "data/gating-8x8.json", "noise": 0.1},
            "wiring": {
                "gpus_per_server": 8,
                "nic_rate": "100Gb/s",
                "regions": [{"count": 16, "servers": 8, "ocs": {"settle": "25ms"}}],
                "eps": {"servers_per_leaf": 16, "spines": 4},
            },
            "fabrics": [{"name": policy, "optical": 6, "electrical": 2, "policy": policy}],
        }
    )  # fmt: skip


def test_prediction_time_of_sixteen_regions_grows_with_their_tasks() -> None:
    cpu_s = {}
    for micro_batches in (4, 8):
        experiment = spec(micro_batches)
        fabric = experiment.build_fabric(experiment.fabrics[0], "bench", Scale())
        all_jobs = Jobs(
            fabric, workload_on(experiment, fabric, EXAMPLES), experiment.training.shape
        )
        tasks = sum(len(all_jobs.tasks(job, 0, Substitutions())) for job in all_jobs.all)
        start = time.process_time()
        [prediction] = predict_fabrics(experiment, EXAMPLES).to_json()["fabrics"]
        cpu_s[micro_batches] = time.process_time() - start
        print(
            f"{micro_batches} micro-batches, {tasks} tasks on 128 servers: "
            f"{cpu_s[micro_batches]:.2f} s of CPU "
            f"for an iteration of {prediction['iteration_s']:.2f} s"
        )
        name = f"prediction of an iteration of 128 servers, CPU: {micro_batches} micro-batches"
        record(name, "s", cpu_s[micro_batches])
    assert cpu_s[8] < 4 * cpu_s[4]


def test_simulation_time_of_a_thousand_gpus_flows() -> None:
    """128 servers, 7 peers each, 8 NICs each; no two flows have equal sizes."""
    random, streams, rates = Random(1), list[Stream](), dict[Link, float]()
    for region in range(16):
        for src, dst, nic in product(range(8), range(8), range(8)):
            if src != dst:
                links = (
                    (f"s{8 * region + src}/e{nic}", "leaf"),
                    ("leaf", f"s{8 * region + dst}/e{nic}"),
                )
                rates |= dict.fromkeys(links, 100e9)
                streams.append(Stream(1e6 * random.lognormvariate(0, 1), links))
    start = time.process_time()
    ends = simulate_streams(streams, rates)
    took_s = time.process_time() - start
    print(f"{len(streams)} flows with {len(set(ends))} ends: {took_s:.2f} s of CPU")
    record(
        "simulation of 7,168 flows of 1,024 GPUs, all of different sizes, CPU",
        "s",
        took_s,
        at_most=15,
    )
    assert took_s < 15
