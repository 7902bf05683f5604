"""Payload transforms on packets: NICs receive as many bytes as a transform says."""

import gc

from moefabric.api.experiment import Experiment
from moefabric.config.loader import experiment_of
from moefabric.results.progress import PlainProgressReporter
from tests.support.recorded_runs import all_to_all_bytes

TRANSFORMS = {"plain": "none", "bigmac": "bigmac(r=0.25)", "both": "bigmac(r=0.25, inner=fp8)"}


class HeapReporter(PlainProgressReporter):
    """Notes how many objects garbage collections skip when a collective ends."""

    def __init__(self) -> None:
        self.frozen: list[int] = []

    def advance(self, text: str) -> None:
        self.frozen.append(gc.get_freeze_count())


def test_nics_receive_a_quarter_of_the_bytes_with_bigmac() -> None:
    fabric = {"optical": 0, "electrical": 1, "policy": "eps"}
    experiment = experiment_of(
        {
            "experiment": "bigmac-bytes",
            "model": {"name": "mixtral-8x7b", "layers": 1},
            "training": {"ep": 2, "tp": 1, "sequence": 512, "micro_batch": 1, "iterations": 1},
            "gating": {"generator": "mixtral-web"},
            "wiring": {"gpus_per_server": 1, "nic_rate": "100Gb/s", "regions": [{"servers": 2}]},
            "fabrics": [
                {"name": name, "transform": transform, **fabric}
                for name, transform in TRANSFORMS.items()
            ],
            "scale": {"bytes": 4, "dilation": 100},
        }
    )
    reporter = HeapReporter()
    result = Experiment.of(experiment).run(reporter=reporter)
    received = {name: all_to_all_bytes(result[name]) for name in TRANSFORMS}
    assert abs(received["bigmac"] / received["plain"] - 0.25) < 0.005
    assert abs(received["both"] / received["plain"] - (1024 + 8 * 4) / 8192) < 0.005
    for fabric_result in result.results:
        assert fabric_result.integrity.bytes_sent == fabric_result.integrity.bytes_received
    assert min(reporter.frozen) > 10_000  # a full collection would delay requests by 40 to 80 ms
    assert gc.get_freeze_count() == 0
