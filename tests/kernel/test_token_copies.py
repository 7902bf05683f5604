"""Copies of tokens on packets: NICs receive one copy for each server, and fewer if it is so set."""

from pathlib import Path

import numpy as np

from moefabric.api.experiment import Experiment
from moefabric.config.loader import experiment_of
from moefabric.prediction.workload_loader import workload, workload_of
from tests.support.recorded_runs import all_to_all_bytes
from tests.support.routes import topic_routes

RULES: dict[str, dict[str, object]] = {
    "each": {},
    "once": {"copies": "server"},
    "pruned": {"copies": "server", "copy_limit": 1},
}


def test_nics_receive_as_many_bytes_as_tokens_have_copies(tmp_path: Path) -> None:
    routes = topic_routes(64, 8, (1, 1, 4, 512), strength=2.0)
    np.savez_compressed(tmp_path / "routes.npz", routes=routes.experts)
    experiment = experiment_of(
        {
            "experiment": "occult-bytes",
            "model": {"name": "small", "layers": 1, "hidden": 1024, "ffn": 512, "experts": 64,
                      "top_k": 8, "attention": {"heads": 8, "kv_heads": 8, "head_size": 128}},
            "training": {"ep": 4, "tp": 1, "sequence": 512, "micro_batch": 1, "iterations": 1},
            "gating": {"trace": str(tmp_path / "routes.npz")},
            "wiring": {"gpus_per_server": 1, "nic_rate": "100Gb/s", "regions": [{"servers": 4}]},
            "fabrics": [
                {"name": name, "optical": 0, "electrical": 1, "policy": "eps", **rule}
                for name, rule in RULES.items()
            ],
            "scale": {"bytes": 4, "dilation": 100},
        }
    )  # fmt: skip
    result = Experiment.of(experiment, tmp_path).run()
    work = workload(experiment, [[f"s{n}" for n in range(4)]], tmp_path)
    received = {}
    for choice in experiment.fabrics:
        demand = workload_of(choice, work).layer_of(0, 0, 0).demand
        received[choice.name] = all_to_all_bytes(result[choice.name])
        # Dispatch and combine, forward and backward.
        assert abs(received[choice.name] / (4 * demand.total_bytes) - 1) < 0.01
    assert received["pruned"] < received["once"] < 0.7 * received["each"]
