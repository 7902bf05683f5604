"""A NIC for each GPU, with packets: bytes pass the NICs of the GPUs that send and receive them."""

from dataclasses import replace
from itertools import count, product
from pathlib import Path

import numpy as np
import pytest

from moefabric.config.loader import experiment_of
from moefabric.core.eps import Eps
from moefabric.core.flows import PacedFlow
from moefabric.core.paths import nic_paths
from moefabric.core.port_counts import RECEIVED, SENT, counted_nics, framed_bytes
from moefabric.core.units import Scale
from moefabric.execution.run import run
from moefabric.results.progress import PlainProgressReporter
from moefabric.testbed.testbed import port_counters, running_testbed
from tests.support.fabrics import fabric
from tests.support.namespaces import own_machine
from tests.support.skewed_gpus import skewed_experiment, slowest_nic_to_pooled

SIZE = 300_000
FEW_FRAMES = 10
"""Frames of earlier transfers; one of `SIZE` has twice as many in each direction."""


@pytest.mark.parametrize(
    "eps",
    [
        pytest.param(Eps(2, nic_per_gpu=True), id="one-leaf"),
        pytest.param(Eps(1, 2, nic_per_gpu=True), id="spines"),
        pytest.param(Eps(1, 2, hash_seed=1, nic_per_gpu=True), id="hashed"),
    ],
)
def test_bytes_and_their_answers_pass_the_nics_of_both_gpus_alone(eps: Eps) -> None:
    wired = replace(fabric(0, 2, regions=(2,), eps=eps, scale=Scale(1000)), gpus=2)
    nics, numbers = [str(nic) for nic in counted_nics(wired)], count(1)
    with own_machine(), running_testbed(wired) as (_, fleet, _), port_counters(wired) as counters:
        for near, far in product(range(2), repeat=2):
            for path in nic_paths(wired, "s0", "s1", near, far):
                before = counters.read()
                flow = PacedFlow("s0", "s1", path, SIZE, None)
                (record,) = fleet.run(next(numbers), [flow], None, 20.0)
                assert record.ok, record.why
                after = counters.read()
                frames = (after.frames - before.frames)[: len(nics), [SENT, RECEIVED]]
                used = {nics[row] for row in np.flatnonzero(frames.sum(axis=1) > FEW_FRAMES)}
                assert used == {f"s0/e{near}", f"s1/e{far}"}
                payload = after.payload_since(before)
                assert payload[nics.index(f"s0/e{near}"), SENT] >= framed_bytes(SIZE)
                assert payload[nics.index(f"s1/e{far}"), RECEIVED] >= framed_bytes(SIZE)


def test_measured_all_to_alls_take_as_long_as_the_slowest_nic(tmp_path: Path) -> None:
    spec = experiment_of(skewed_experiment(tmp_path))
    with own_machine():
        pooled, own, hashed = run(spec, tmp_path, PlainProgressReporter()).results
    pooled_s, own_s, hashed_s = (
        min(one.measured_s for one in each.collectives) for each in (pooled, own, hashed)
    )
    assert own_s / pooled_s == pytest.approx(slowest_nic_to_pooled(), rel=0.1)
    assert hashed_s > own_s * 0.95
    for each in (pooled, own, hashed):
        assert each.integrity.corrupt == each.integrity.lost_transfers == 0
        assert not [flow for one in each.collectives for flow in one.misrouted]
