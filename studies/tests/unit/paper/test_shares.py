"""Shares of time and of traffic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from moefabric_studies.paper.job import PaperJob
from moefabric_studies.paper.loader import load_jobs
from moefabric_studies.paper.shares import LayerTimes, layer_times, rank_expert_tokens
from moefabric_studies.paper.traffic_matrix import part_within
from numpy.typing import NDArray

from moefabric.config.model import preset
from moefabric.core.demand import Placement
from moefabric.traces.gating_files import read_gating
from moefabric.workload.iterations.iteration import moe_layer
from moefabric.workload.models.model import Training
from tests.support.paths import EXAMPLES

MIXTRAL = preset("mixtral-8x7b")
PRODUCTION = Training(8, 4, 4096, 8, 989e12, 0.4)
"""Mixtral 8x7B on H800s (paper, table 1)."""
PUBLISHED = read_gating(EXAMPLES / "data/gating-8x8.json").matrix(0, 0)


def test_times_of_a_layer_of_the_production_measurement() -> None:
    """Expert 0 gets 155,406 of 524,288 tokens, the mean is 65,536."""
    times = layer_times(MIXTRAL, PRODUCTION, PUBLISHED, 0.0173)
    all_reduces_s = 2 * 2 * 3 / 4 * 32768 * 8192 / 450e9
    busiest = 2 * (9810 + 9278 + 10684 + 10897 + 8684 + 8361 + 10208 + 9781)
    flop_s = 3 * 352_321_536 / (4 * 989e12 * 0.4)
    assert times.expert_s == pytest.approx(65536 * flop_s + all_reduces_s)
    assert times.busiest_expert_s == pytest.approx(busiest * flop_s + all_reduces_s)
    assert times.straggler_s == pytest.approx((busiest - 65536) * flop_s)
    assert times.seconds == pytest.approx(times.attention_s + times.busiest_expert_s + 0.0173)


def test_experts_of_the_production_measurement_compute_more_than_100_ms() -> None:
    """Section 3: expert computation takes more than 100 ms. Both passes at the busiest rank do."""
    both = layer_times(MIXTRAL, PRODUCTION, PUBLISHED, 0.0)
    forward = layer_times(MIXTRAL, PRODUCTION, PUBLISHED, 0.0, ("forward",))
    assert both.busiest_expert_s == pytest.approx(0.1056, rel=1e-3)
    assert forward.busiest_expert_s == pytest.approx(0.0358, rel=1e-2)


def test_calls_include_the_wait_for_the_busiest_experts() -> None:
    times = LayerTimes(attention_s=1.0, expert_s=2.0, busiest_expert_s=5.0, all_to_all_s=2.0)
    assert times.transfer_share == 2 / 8
    assert times.call_share == (2 + 3) / 8


@given(arrays.arrays(np.int64, (8, 8), elements=st.integers(1, 1000)))
def test_ranks_wait_unless_gating_is_even(gating: NDArray[np.int64]) -> None:
    times = layer_times(MIXTRAL, PRODUCTION, gating, 0.01)
    assert times.straggler_s >= -1e-12
    assert times.call_share >= times.transfer_share - 1e-12
    even = layer_times(MIXTRAL, PRODUCTION, np.ones((8, 8)), 0.01)
    assert even.straggler_s == pytest.approx(0.0, abs=1e-12)
    assert times.expert_s == pytest.approx(even.expert_s)
    tokens = rank_expert_tokens(MIXTRAL, PRODUCTION, gating)
    placement = Placement(tuple("abcdefgh"), 8, 8)
    assert tuple(tokens) == pytest.approx(
        moe_layer(MIXTRAL, PRODUCTION, placement, gating).busiest_tokens
    )


@pytest.fixture(scope="module")
def production() -> dict[str, PaperJob]:
    """The jobs of the production measurement."""
    return load_jobs(EXAMPLES / "paper/measured.yaml")


def test_traffic_of_an_iteration_by_hand(production: dict[str, PaperJob]) -> None:
    """32 layers, 8 micro-batches and 8 ranks; 3 of 4 stages send on; rings of 4 servers."""
    sent = {kind: matrix.sum() for kind, matrix in production[MIXTRAL.name].gpu_traffic.items()}
    rank = 32768 * 8192
    leaving = 1 - PUBLISHED.trace() / PUBLISHED.sum()
    replicated = 2 * 4096 * (4096 + 1024) + 4096 * 8
    assert sent == pytest.approx(
        {
            "tensor": 32 * 8 * 8 * 4 * (4 * 2 * 3 / 4) * rank,
            "expert": 32 * 8 * 8 * 4 * 2 * leaving * rank,
            "pipeline": 2 * 3 * 8 * 8 * rank,
            "data": 32 * 4 * 2 * replicated * 2 * 3 / 4,
        }
    )


@pytest.mark.parametrize("name", ["llama-moe", "qwen-moe"])
def test_experts_dominate_the_traffic_of_small_models(
    production: dict[str, PaperJob], name: str
) -> None:
    """Figure 2: more than 80 % (16 ranks of one GPU, 4 stages, 2 replicas)."""
    sent = {kind: matrix.sum() for kind, matrix in production[name].gpu_traffic.items()}
    assert sent["expert"] > 0.8 * sum(sent.values())


def test_traffic_is_local(production: dict[str, PaperJob]) -> None:
    """Figure 5: stages send each other activations alone, and a server keeps tensor parallelism."""
    job = production[MIXTRAL.name]
    sent = {kind: matrix.sum() for kind, matrix in job.gpu_traffic.items()}
    stage = part_within(job, [], 32)
    assert stage == pytest.approx(1 - sent["pipeline"] / sum(sent.values()))
    assert part_within(job, ["tensor"], 4) == part_within(job, ["expert"], 32) == 1.0
    assert part_within(job, ["expert"], 8) == pytest.approx(1 / 7, rel=0.1)
    assert part_within(job, ["pipeline"], 32) == 0.0
