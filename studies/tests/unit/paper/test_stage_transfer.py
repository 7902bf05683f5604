"""Overlap of pipeline transfers with all-to-alls: times computed by hand, and lower bounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moefabric_studies.paper.iteration import StageTransfer, compose_iteration, overlapped_iteration
from moefabric_studies.paper.loader import load_jobs
from moefabric_studies.paper.network import NETWORKS, nic_bytes_s

from tests.support.paths import EXAMPLES

JOBS = load_jobs(EXAMPLES / "paper/jobs.yaml")
ALMOST = 1 - 1e-9


def two_servers(light: float, electrical: float, attention_s: float = 0.0) -> StageTransfer:
    """A server sends another 64 bytes, then both send on 32 bytes, in each of four sequences."""
    pair = np.array([[0.0, 1.0], [0.0, 0.0]])
    return StageTransfer(64 * pair, light * pair, np.full(2, electrical), 32.0, 4, attention_s)


@pytest.mark.parametrize(
    ("transfer", "sequential_s", "overlapped_s"),
    [
        # Steps of 2 s (all-to-all), 3 s (both) and 1 s (transfer): no gain without circuits.
        pytest.param(two_servers(0.0, 8.0), 12.0, 2 + 3 * 3 + 1, id="eps-only"),
        # The transfer's 8 bytes take 4 s by the EPS; circuits carry the all-to-all's 16 bytes.
        pytest.param(two_servers(6.0, 2.0), 24.0, 2 + 3 * 4 + 4, id="circuits-and-eps"),
        pytest.param(two_servers(0.0, 8.0, 4.0), 16.0, 2 + 2 + 3 + 3 + 1 + 1, id="attention-hides"),
        pytest.param(two_servers(0.0, 8.0, 40.0), 52.0, 2 + 4 * 10 + 1, id="attention-dominates"),
    ],
)
def test_step_lasts_as_long_as_its_longest_part(
    transfer: StageTransfer, sequential_s: float, overlapped_s: float
) -> None:
    assert transfer.sequential_s == pytest.approx(sequential_s)
    assert transfer.overlapped_s == pytest.approx(overlapped_s)
    assert transfer.seconds == pytest.approx(min(sequential_s, overlapped_s))


@st.composite
def stage_transfers(draw: st.DrawFn) -> StageTransfer:
    """Draw transfers of two to five servers; circuits are symmetric."""
    servers = draw(st.integers(2, 5))
    cells = st.lists(st.floats(0, 100), min_size=servers**2, max_size=servers**2)
    demand = np.array(draw(cells)).reshape(servers, servers) * ~np.eye(servers, dtype=bool)
    circuits = draw(st.lists(st.integers(0, 2), min_size=servers**2, max_size=servers**2))
    upper = np.triu(np.array(circuits, dtype=float).reshape(servers, servers), 1)
    budgets = np.full(servers, draw(st.floats(0.5, 8)))
    attention_s = draw(st.sampled_from([0.0, 3.0, 30.0]))
    return StageTransfer(
        demand,
        upper + upper.T,
        budgets,
        draw(st.floats(0, 100)),
        draw(st.integers(1, 8)),
        attention_s,
    )


@given(stage_transfers())
def test_last_sequence_is_sent_on_after_its_all_to_all(transfer: StageTransfer) -> None:
    all_to_all_s = replace(transfer, transfer_bytes=0.0, attention_s=0.0).sequential_s
    last_s = (
        transfer.attention_s / transfer.sequences
        + transfer.transfer_bytes / transfer.sequences / transfer.budgets[0]
    )
    assert transfer.overlapped_s >= (all_to_all_s + last_s) * ALMOST
    assert replace(transfer, sequences=1).overlapped_s == pytest.approx(transfer.sequential_s)


@given(stage_transfers())
def test_transfer_is_not_faster_than_nics(transfer: StageTransfer) -> None:
    sent = transfer.demand.sum(axis=1) + transfer.transfer_bytes
    limits = transfer.light.sum(axis=1) + transfer.budgets
    assert transfer.seconds >= float((sent / limits).max()) * ALMOST
    assert transfer.seconds >= transfer.transfer_bytes / transfer.budgets[0] * ALMOST


@pytest.mark.parametrize("network", ["fat-tree", "mixnet-spill", "mixnet-joint"])
@pytest.mark.parametrize("job", ["mixtral-8x22b", "llama-moe"])
def test_overlap_changes_only_pipeline_time_and_saves_time(job: str, network: str) -> None:
    chosen = NETWORKS[network]
    all_to_all = chosen.all_to_all(JOBS[job], 100e9)
    sequential = compose_iteration(JOBS[job], all_to_all, chosen.electrical * nic_bytes_s(100e9))
    overlapped = overlapped_iteration(JOBS[job], all_to_all, chosen.electrical, 100e9)
    assert replace(overlapped, pipeline_s=sequential.pipeline_s) == sequential
    assert overlapped.seconds <= sequential.seconds
