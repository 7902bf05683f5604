"""How long the simulation of whole iterations takes: 16 regions of 8 servers, eight pipeline stages of two replicas, for a few sizes."""

import time
from pathlib import Path

from moefabric.experiment.jobs import Jobs
from moefabric.experiment.predict import predicted
from moefabric.experiment.workload import workload_on
from moefabric.spec.experiment import ExperimentSpec
from moefabric.topology import Scale

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_sixteen_regions_are_foreseen_in_time_that_grows_with_their_tasks() -> None:
    took = {}
    for micro_batches in (4, 8):
        asked = spec(micro_batches)
        fabric = asked.wired(asked.fabrics[0], "bench", Scale())
        made = Jobs(fabric, workload_on(asked, fabric, EXAMPLES), asked.training.shape)
        tasks = sum(len(made.tasks(job, 0)) for job in made.all)
        began = time.process_time()
        [said] = predicted(asked, EXAMPLES)["fabrics"]
        took[micro_batches] = time.process_time() - began
        print(
            f"{micro_batches} micro-batches, {tasks} tasks on 128 servers: {took[micro_batches]:.2f} s of CPU"
            f" for an iteration of {said['iteration_s']:.2f} s"
        )
    assert took[8] < 4 * took[4]
