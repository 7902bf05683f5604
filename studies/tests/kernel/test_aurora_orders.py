"""All-to-alls in phases, with packets."""

from itertools import groupby
from pathlib import Path

import pytest

from moefabric.config.loader import experiment_of
from moefabric.execution.run import run
from moefabric.results.comparison import joined_phases
from moefabric.results.progress import PlainProgressReporter
from tests.support.namespaces import own_machine
from tests.support.paths import EXAMPLES

SWITCH = {"optical": 0, "electrical": 1, "policy": "eps"}


def test_phases_of_an_all_to_all_carry_its_bytes_one_after_the_other(tmp_path: Path) -> None:
    spec = experiment_of(
        {
            "experiment": "phases",
            "model": {"name": "mixtral-8x7b", "layers": 1},
            "training": {
                "ep": 8,
                "tp": 1,
                "sequence": 4096,
                "micro_batch": 1,
                "iterations": 1,
                "token_counts": False,
            },
            "gating": {"matrix": str(EXAMPLES / "data/gating-8x8.json")},
            "wiring": {"gpus_per_server": 2, "nic_rate": "100Gb/s", "regions": [{"servers": 4}]},
            "fabrics": [
                {"name": "whole", **SWITCH},
                {"name": "phased", **SWITCH, "collective": "aurora(shortest=0.1, barrier_s=0.01)"},
            ],
            "scale": {"bytes": 1000},
        }
    )
    with own_machine():
        whole, phased = run(spec, tmp_path, PlainProgressReporter()).results
    assert phased.collective == "aurora(shortest=0.1, barrier_s=0.01)"
    joined = joined_phases(phased.collectives)
    assert len(joined) == len(whole.collectives) == 4
    assert [one.bytes_by_eps for one in joined] == pytest.approx(
        [one.bytes_by_eps for one in whole.collectives], rel=0.01
    )
    for _, phases in groupby(phased.collectives, lambda one: (one.direction, one.kind)):
        listed = list(phases)
        assert len(listed) == listed[0].phases > 1
        assert [one.phase for one in listed] == list(range(len(listed)))
        assert [one.pause_s for one in listed] == [0.0] + [0.01] * (len(listed) - 1)
    assert phased.integrity.corrupt == phased.integrity.lost_transfers == 0
    names = {interval.kind for interval in phased.timeline}
    assert {"pause", "dispatch", "combine"} <= names
