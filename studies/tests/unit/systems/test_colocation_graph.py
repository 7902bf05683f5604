"""Execution graphs of inference layers, alone and on shared GPUs."""

import numpy as np
import pytest
from moefabric_studies.systems.aurora.colocation import Deployment, ExpertLayer, HostedLayer
from moefabric_studies.systems.aurora.packets import Token, inference_graph

RATES = np.array([1.0, 0.5, 1.0, 0.25])
TOKEN = Token(1000.0, 1e-6)


def layer(seed: int, experts: int = 4) -> ExpertLayer:
    return ExpertLayer(
        np.random.default_rng(seed).integers(1, 99, (experts, experts)).astype(float)
    )


def test_gpu_computes_at_its_port_rate_and_sends_its_row() -> None:
    one = layer(1)
    graph = inference_graph(Deployment.of([one], RATES), TOKEN)
    assert not list(graph.faults())
    gate, dispatch, expert, combine, aggregation = graph.ranks[3]
    assert gate.duration_s == pytest.approx(0.1 * one.tokens[3].sum() * 4e-6)
    assert expert.duration_s == pytest.approx(one.tokens[:, 3].sum() * 4e-6)
    assert aggregation.duration_s == gate.duration_s
    assert dispatch.splits == (*(int(1000 * n) for n in one.tokens[3, :3]), 0)
    assert combine.splits == (*(int(1000 * n) for n in one.tokens[:3, 3]), 0)
    assert [node.after for node in graph.ranks[3]] == [(), (0,), (1,), (2,), (3,)]


def test_gpu_of_two_models_computes_in_turns_and_their_all_to_alls_are_apart() -> None:
    graph = inference_graph(Deployment.of([layer(1), layer(2)], RATES), TOKEN)
    assert not list(graph.faults())
    nodes = graph.ranks[0]
    computed = [node.name for node in nodes if node.kind == "compute"]
    assert computed == ["gate", "gate", "expert", "expert", "aggregation", "aggregation"]
    assert len({node.stream for node in nodes if node.kind == "compute"}) == 1
    assert all(node.stream < 0 for node in nodes if node.kind == "collective")
    for model in ("model0", "model1"):
        own = [node.name for node in nodes if node.group == model]
        assert own == ["dispatch", "combine"]


def test_models_on_gpus_of_their_own_leave_the_others_alone() -> None:
    hosted = tuple(HostedLayer(layer(seed, 2), gpus) for seed, gpus in ((1, (3, 0)), (2, (2, 1))))
    apart = Deployment(hosted, RATES)
    graph = inference_graph(apart, TOKEN)
    assert not list(graph.faults())
    assert {rank: nodes[1].group for rank, nodes in graph.ranks.items()} == {
        0: "model0", 1: "model1", 2: "model1", 3: "model0",
    }  # fmt: skip
    assert graph.ranks[0][1].splits == (round(1000 * hosted[0].layer.tokens[1, 0]), 0)
    alone = [one.layer.seconds(RATES[list(one.gpus)]) for one in hosted]
    assert apart.seconds() == max(alone)
