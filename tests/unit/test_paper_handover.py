"""The hand-over to the next pipeline stage beside the all-to-all before it: sums by hand, and what no schedule can undercut."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moefabric.paper import read
from moefabric.paper.handover import HandOver, overlapped
from moefabric.paper.iteration import of
from moefabric.paper.network import NETWORKS, byte_rate

JOBS = read.jobs(Path(__file__).parents[2] / "examples/paper/jobs.yaml")
ALMOST = 1 - 1e-9


def two(light: float, electrical: float, attention_s: float = 0.0) -> HandOver:
    """One server of two owes the other 64 bytes, and both hand on 32, in four sequences."""
    pair = np.array([[0.0, 1.0], [0.0, 0.0]])
    return HandOver(64 * pair, light * pair, np.full(2, electrical), 32.0, 4, attention_s)


@pytest.mark.parametrize(
    ("made", "in_turn", "beside"),
    [
        # Steps of 2 s (all-to-all), 3 s (both) and 1 s (transfer): where all NICs are the EPS's, the server that owes sends as long either way.
        pytest.param(two(0.0, 8.0), 12.0, 2 + 3 * 3 + 1, id="by-the-eps-alone"),
        # The transfer's 8 bytes take 4 s over the EPS's quarter of the NICs, in which light carries all of the 16 bytes of the all-to-all.
        pytest.param(two(6.0, 2.0), 24.0, 2 + 3 * 4 + 4, id="by-light-and-eps"),
        pytest.param(two(0.0, 8.0, 4.0), 16.0, 2 + 2 + 3 + 3 + 1 + 1, id="attention-hides"),
        pytest.param(two(0.0, 8.0, 40.0), 52.0, 2 + 4 * 10 + 1, id="attention-hides-all-but-the-ends"),
    ],
)
def test_each_step_lasts_as_long_as_its_longest_part(made: HandOver, in_turn: float, beside: float) -> None:
    assert made.in_turn_s == pytest.approx(in_turn)
    assert made.beside_s == pytest.approx(beside)
    assert made.seconds == pytest.approx(min(in_turn, beside))


@st.composite
def hand_overs(draw: st.DrawFn) -> HandOver:
    """Of two to five servers; light is symmetric, as circuits are."""
    servers = draw(st.integers(2, 5))
    cells = st.lists(st.floats(0, 100), min_size=servers**2, max_size=servers**2)
    owed = np.array(draw(cells)).reshape(servers, servers) * ~np.eye(servers, dtype=bool)
    circuits = draw(st.lists(st.integers(0, 2), min_size=servers**2, max_size=servers**2))
    upper = np.triu(np.array(circuits, dtype=float).reshape(servers, servers), 1)
    budgets = np.full(servers, draw(st.floats(0.5, 8)))
    attention_s = draw(st.sampled_from([0.0, 3.0, 30.0]))
    return HandOver(
        owed, upper + upper.T, budgets, draw(st.floats(0, 100)), draw(st.integers(1, 8)), attention_s
    )


@given(hand_overs())
@settings(max_examples=60, deadline=None)
def test_the_last_sequence_goes_on_when_it_is_back_and_no_sooner(made: HandOver) -> None:
    all_to_all_s = replace(made, handed=0.0, attention_s=0.0).in_turn_s
    last_s = made.attention_s / made.sequences + made.handed / made.sequences / made.budgets[0]
    assert made.beside_s >= (all_to_all_s + last_s) * ALMOST
    assert replace(made, sequences=1).beside_s == pytest.approx(made.in_turn_s)


@given(hand_overs())
@settings(max_examples=60, deadline=None)
def test_no_server_sends_more_than_its_nics(made: HandOver) -> None:
    sent = made.owed.sum(axis=1) + made.handed
    most = made.light.sum(axis=1) + made.budgets
    assert made.seconds >= float((sent / most).max()) * ALMOST
    assert made.seconds >= made.handed / made.budgets[0] * ALMOST


@pytest.mark.parametrize("network", ["fat-tree", "mixnet-spill", "mixnet-joint"])
@pytest.mark.parametrize("job", ["mixtral-8x22b", "llama-moe"])
def test_an_iteration_differs_in_its_transfers_alone_and_is_no_longer(job: str, network: str) -> None:
    made, there = JOBS[job], NETWORKS[network]
    sent = there.all_to_all(made, 100e9)
    plain = of(made, sent, there.electrical * byte_rate(100e9))
    beside = overlapped(made, sent, there.electrical, 100e9)
    assert replace(beside, pipeline_s=plain.pipeline_s) == plain
    assert beside.seconds <= plain.seconds
