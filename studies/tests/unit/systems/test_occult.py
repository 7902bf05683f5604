"""Set-up of Occult's study, and its interpretation of measurements."""

import numpy as np
import pytest
from moefabric_studies.systems.occult import study as occult
from moefabric_studies.systems.occult.placement import Occult
from moefabric_studies.systems.occult.structure import generated_gains, sum_at_servers, topic_routes
from moefabric_studies.systems.study import load_study

from moefabric.config.loader import experiment_of
from moefabric.config.plugins import PLACEMENTS, load_plugin
from moefabric.prediction.workload_loader import workload, workload_of
from moefabric.traces.route_files import load_routes
from tests.support.paths import EXAMPLES

FILE = EXAMPLES / "systems/occult.yaml"


def test_ways_to_send_tokens_differ_in_their_exact_copies() -> None:
    _, study, setup = load_study(FILE)
    assert isinstance(study, occult.OccultStudy)
    document = occult.document(setup, FILE.parent, 4, 1)
    spec = experiment_of(document)
    work = workload(spec, [["s0", "s1", "s2", "s3"]], FILE.parent)
    tokens = 4 * work.training.rank_tokens * work.training.dispatch_token_bytes(work.model)
    copies = {
        choice.name: workload_of(choice, work).layer_of(0, 0, 0).demand.array.sum() / tokens
        for choice in spec.fabrics
    }
    assert copies["each-expert"] == pytest.approx(8)
    assert copies["prune-1"] == pytest.approx(1)
    assert 1 < copies["prune-2"] <= 2
    assert 2 < copies["occult-swap"] <= copies["occult"] < copies["once"] < 4


def test_routes_in_the_repository_are_those_of_64_experts() -> None:
    routes = load_routes(EXAMPLES / "data/moe-64-experts-routes.npz")
    assert routes.experts.shape == (4, 3, 1, 4096, 8)
    assert routes.scores is not None
    assert (np.diff(routes.scores.astype(int), axis=-1) <= 0).all(), "in the order of the gate"


def test_sums_of_servers_really_run_and_give_the_plain_result() -> None:
    routes = topic_routes(16, 4, (1, 1, 1, 64), strength=1.0).layer(0, 0)
    sums = sum_at_servers(routes, np.arange(16) // 4, tokens=64, repetitions=2)
    assert 0 <= sums.difference < 1e-5
    assert len(sums.time_ratios) == 2


def test_placement_gains_as_routes_gain_structure() -> None:
    weak, strong = generated_gains((0.0, 3.0), 32, 4, 4)
    assert abs(weak.greedy) < 2
    assert strong.swap >= strong.greedy > 10
    assert weak.structure < 0.1 < strong.structure


def test_reference_with_arguments_names_the_placement() -> None:
    assert load_plugin(PLACEMENTS, "occult(refine=swap, group=server)") == Occult("swap", "server")
