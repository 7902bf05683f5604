"""Copies of tokens for each expert, rank or server, and the results that come back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.config.model import preset
from moefabric.core.demand import Placement
from moefabric.workload.gating.job_gating import JobGating
from moefabric.workload.gating.token_routes import LayerRoutes, TokenRoutes
from moefabric.workload.iterations.iteration import moe_layer
from moefabric.workload.models.model import Training
from moefabric.workload.placement.copy_rule import (
    CopyRule,
    RoutedTokens,
    routed_layer,
    routed_tokens,
)
from moefabric.workload.workload import Workload
from tests.support.routes import topic_routes

MODEL = replace(preset("mixtral-8x7b"), experts=16, top_k=4)
TRAINING = Training(8, 1, 50, 2, 312e12, 0.4)
PLACEMENT = Placement(("s0", "s1", "s2", "s3"), 8, 16)
SLOTS = np.arange(16)


def layer_routes(strength: float = 1.0) -> LayerRoutes:
    return topic_routes(16, 4, (1, 1, 8, 100), strength=strength).layer(0, 0)


def routed(rule: CopyRule, routes: LayerRoutes | None = None) -> RoutedTokens:
    return routed_tokens(routes or layer_routes(), PLACEMENT, SLOTS, rule)


def test_copies_for_each_expert_are_those_of_counts() -> None:
    routes = layer_routes()
    counts = TokenRoutes(routes.experts[None, None]).counts(16)[0, 0]
    exact = routed_layer(MODEL, TRAINING, PLACEMENT, routes, SLOTS, CopyRule())
    counted = moe_layer(MODEL, TRAINING, PLACEMENT, counts)
    np.testing.assert_allclose(exact.demand.array, counted.demand.array)
    assert exact.busiest_tokens == pytest.approx(counted.busiest_tokens)


@pytest.mark.parametrize(("unit", "size"), [("rank", 2), ("server", 4)])
def test_a_token_goes_to_each_rank_or_server_once(unit: str, size: int) -> None:
    routes = layer_routes()
    found = routed(CopyRule(unit), routes)  # type: ignore[arg-type]
    places = [len(set(token // size)) for token in routes.experts.reshape(800, 4)]
    assert found.copies.sum() == sum(places)
    assert np.array_equal(found.computed, routed(CopyRule()).computed), "experts compute as before"


def test_a_token_of_two_experts_on_a_server_goes_there_once() -> None:
    routes = LayerRoutes(np.array([[[0, 1, 2, 15]]] + [[[4, 8, 12, 15]]] * 7))
    copies = {unit: routed(CopyRule(unit), routes).copies for unit in ("expert", "rank", "server")}
    assert copies["expert"][0].tolist() == [3, 0, 0, 1]
    assert copies["rank"][0].tolist() == [2, 0, 0, 1]
    assert copies["server"][0].tolist() == [1, 0, 0, 1]
    assert copies["server"][1].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("unit", ["rank", "server"])
@pytest.mark.parametrize("limit", [1, 2])
def test_pruning_keeps_the_places_with_most_score(unit: str, limit: int) -> None:
    routes = layer_routes(0.0)
    found = routed(CopyRule(unit, limit), routes)  # type: ignore[arg-type]
    size = {"rank": 2, "server": 4}[unit]
    places = [[len(set(token // size)) for token in rank] for rank in routes.experts]
    assert found.copies.sum() == np.minimum(places, limit).sum()
    at_hand = np.minimum(np.minimum(places, limit) * size, 4)
    assert found.computed.sum() == pytest.approx(at_hand.sum()), "other experts compute instead"
    first = LayerRoutes(np.array([[[0, 4, 5, 8]]] * 8), np.array([[[0.7, 0.1, 0.1, 0.1]]] * 8))
    assert routed(CopyRule("server", 1), first).copies[0].tolist() == [1, 0, 0, 0]
    unscored = replace(first, scores=None)
    assert routed(CopyRule("server", 1), unscored).copies[0].tolist() == [0, 1, 0, 0]


@given(st.integers(0, 20), st.sampled_from([(0, 1), (0, 3), (2, 5)]))
def test_sums_of_servers_give_the_plain_result(seed: int, reduced: tuple[int, int]) -> None:
    """Each server adds up its experts' results and returns one sum: the total is the same."""
    random = np.random.default_rng(seed)
    routes = topic_routes(16, 4, (1, 1, 1, 20), strength=1.0, seed=seed).layer(0, 0)
    assert routes.scores is not None
    tokens, weights = random.normal(size=(20, 8)), random.normal(size=(16, 8, 8))
    results = np.einsum("th,tkhf->tkf", tokens, weights[routes.experts[0]])
    weighted = results * routes.scores[0][..., None]
    servers = SLOTS[routes.experts[0]] // 4
    returned = np.stack([(weighted * (servers == s)[..., None]).sum(axis=1) for s in range(4)])
    sent = [int((servers == server).any(axis=1).sum()) for server in range(4)]
    np.testing.assert_allclose(returned.sum(axis=0), weighted.sum(axis=1), atol=1e-12)
    one = replace(PLACEMENT, ranks=4)
    alike = LayerRoutes(np.repeat(routes.experts, 4, axis=0))
    assert routed_tokens(alike, one, SLOTS, CopyRule("server")).copies[0].tolist() == sent


def test_workload_with_routes_has_their_copies_in_each_iteration() -> None:
    routes = topic_routes(16, 4, (3, 2, 8, 100), strength=2.0)
    counts = routes.counts(16)
    placements = (PLACEMENT,)
    model = replace(MODEL, layers=2)
    gating = JobGating(counts[1:], "test", history=counts[:1])
    work = Workload(model, TRAINING, placements, gating, 2)
    with pytest.raises(ValueError, match=r"needs routes of single tokens.*gating.trace"):
        work.with_copies(CopyRule("server"))
    work = replace(work, gating=replace(gating, routes=routes))
    once = work.with_copies(CopyRule("server"))
    for iteration, step in ((-1, 0), (0, 1), (1, 2), (2, 1)):
        demand = once.layer_of(iteration, 1, 0).demand.array
        exact = routed_layer(
            model, TRAINING, PLACEMENT, routes.layer(step, 1), SLOTS, CopyRule("server")
        )
        assert np.array_equal(demand, exact.demand.array)
        assert demand.sum() < work.layer_of(iteration, 1, 0).demand.array.sum()
    assert once.total_demand().total_bytes < work.total_demand().total_bytes
