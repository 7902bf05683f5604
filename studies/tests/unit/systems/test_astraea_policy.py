"""Astraea's decisions: features, actor, windows, and what the policy remembers of flows."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moefabric_studies.systems.astraea.decisions import WIDTHS, Actor, Measurements, next_window
from moefabric_studies.systems.astraea.policy import FlowMemory, pacing_rate
from moefabric_studies.systems.astraea.transport import astraea_transport

from moefabric.core.errors import SpecError
from moefabric.core.transport import Transport
from moefabric.emulator.congestion.transports import DCTCP
from moefabric.emulator.congestion.window_table import ROW


def measurements(**changed: float) -> Measurements:
    """One flow with one bandwidth-delay product in flight: 100 Mb/s, 30 ms, packets of 1,500 B."""
    values = {
        "throughput": 12.5e6,
        "most": 12.5e6,
        "rtt": 0.03,
        "smoothed_rtt": 0.03,
        "least_rtt": 0.03,
        "window": 250.0,
        "packet": 1500.0,
        "lost": 0.0,
        "inflight": 250.0,
        "pacing": 12.5e6,
        "resent": 0.0,
    }
    return Measurements(**{name: np.array([one]) for name, one in (values | changed).items()})


def features(**changed: float) -> list[float]:
    return [float(one[0]) for one in measurements(**changed).features()]


def test_features_of_a_full_link_without_a_queue() -> None:
    assert features() == pytest.approx([1, 1, 1, 0.8, 1.25, 0.06, 0, 1, 1, 0])


def test_features_are_relative_and_bounded() -> None:
    found = features(throughput=6.25e6, rtt=0.09, smoothed_rtt=0.045, lost=1.25e6, pacing=1e9)
    assert found[:3] == pytest.approx([0.5, 2, 1.5])
    assert found[6] == pytest.approx(0.1)
    assert found[8] == 2


def test_window_changes_by_at_most_a_fortieth_in_whole_packets() -> None:
    window = np.full(5, 200.0)
    after = next_window(window, np.array([1.0, -1.0, 0.0, 1e-6, -1e-6]))
    assert after.tolist() == [205, 195, 200, 201, 199]
    assert next_window(np.array([4.0]), np.array([-1.0])).tolist() == [4]


def test_actor_computes_what_its_layers_say(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    for i, (inputs, outputs) in enumerate(pairwise(WIDTHS)):
        arrays[f"w{i}"] = np.full((inputs, outputs), 1 / inputs)
        arrays[f"b{i}"] = np.zeros(outputs)
    np.savez(tmp_path / "mean.npz", allow_pickle=False, **arrays)
    actor = Actor.load(tmp_path / "mean.npz")
    states = np.stack([np.full(50, 0.5), np.full(50, -1.0)])
    assert actor.act(states) == pytest.approx(np.tanh([0.5, -(0.2**3)]))


def test_unusable_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    with pytest.raises(SpecError, match=r"w\.npz: .*arrays w0, b0 to w3, b3"):
        astraea_transport(weights=str(path))
    np.savez(path, allow_pickle=False, w0=np.zeros(1))
    with pytest.raises(SpecError, match="arrays w0, b0"):
        Actor.load(path)
    arrays = {f"{kind}{i}": np.zeros((1, 1)) for kind in "wb" for i in range(4)}
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(SpecError, match="widths"):
        Actor.load(path)


def test_transports_are_not_paced_by_the_plan() -> None:
    transports: list[Transport] = [DCTCP, astraea_transport()]
    assert [(one.name, one.paced) for one in transports] == [("dctcp", False), ("astraea", False)]


def row(socket: int, acknowledgements: int, **changed: int) -> Any:
    values = {
        "socket": socket,
        "acknowledgements": acknowledgements,
        "rtt_sum_us": 30_000 * acknowledgements,
        "srtt_us": 8 * 30_000,
        "min_rtt_us": 30_000,
        "snd_cwnd": 250,
        "packets_out": 250,
        "rate_delivered": 250,
        "rate_interval_us": 30_000,
        "mss_cache": 1448,
    } | changed
    one = np.zeros((), ROW)
    for name, value in values.items():
        one[name] = value
    return one[()]


def test_flows_without_news_do_not_act() -> None:
    memory, numbers = FlowMemory(), np.array([3, 7])
    acts, states = memory.states(numbers, np.array([row(1, 5), row(2, 0)]), 0.02)
    assert acts.tolist() == [True, False]
    assert states.shape == (1, 50)
    acts, states = memory.states(numbers, np.array([row(1, 5), row(2, 4)]), 0.02)
    assert acts.tolist() == [False, True]


def test_states_hold_five_intervals_and_begin_anew_with_a_socket() -> None:
    memory, numbers = FlowMemory(), np.array([3])
    first = np.array([row(1, 5)])
    _, states = memory.states(numbers, first, 0.02)
    assert np.ptp(states.reshape(5, 10), axis=0).max() == 0
    slower = np.array([row(1, 9, rate_delivered=125, lost=2)])
    _, states = memory.states(numbers, slower, 0.02)
    history = states.reshape(5, 10)
    assert history[:, 0].tolist() == [1, 1, 1, 1, 0.5]
    assert history[-1, 6] == pytest.approx(2 * 1448 / 0.02 / (250 * 1448 / 0.03))
    _, states = memory.states(numbers, np.array([row(8, 1, rate_delivered=125)]), 0.02)
    assert states.reshape(5, 10)[:, 0].tolist() == [1] * 5


def test_window_is_sent_in_a_round_trip_time() -> None:
    rates = pacing_rate(np.array([250]), np.array([row(1, 1)]))
    assert rates.tolist() == [pytest.approx(250 * 1500 / 0.03)]
