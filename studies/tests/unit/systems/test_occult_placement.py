"""Occult's placement: the copies of tokens, and groups of experts that lower them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moefabric_studies.systems.occult.placement import Groups, Occult, greedy_groups, swapped_groups
from moefabric_studies.systems.occult.structure import (
    copies_of_token,
    expected_copies,
    structure_index,
    topic_routes,
)

from moefabric.workload.gating.token_routes import Pairs, TokenRoutes, coactivation
from moefabric.workload.placement.placements import Random, expert_order


def routes(strength: float, seed: int = 1, tokens: int = 2000) -> TokenRoutes:
    return topic_routes(32, 4, (1, 1, 1, tokens), strength=strength, seed=seed)


def common_tokens(pairs: Pairs, groups: Groups) -> int:
    """Return the tokens that pairs of experts of the same group have in common."""
    return sum(int(pairs[np.ix_(group, group)].sum()) // 2 for group in groups)


def devices(order: tuple[int, ...], ranks: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    device = np.empty(len(order), dtype=np.int64)
    device[list(order)] = np.arange(len(order)) * ranks // len(order)
    return device


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks", "copies"),
    [(64, 8, 4, 3.66), (64, 8, 8, 5.43), (60, 4, 4, 2.78), (64, 6, 4, 3.35), (64, 6, 8, 4.54)],
)
def test_random_placement_has_the_copies_of_the_closed_form(
    experts: int, top_k: int, ranks: int, copies: float
) -> None:
    assert expected_copies(experts, top_k, ranks) == pytest.approx(copies, abs=0.005)
    chosen = topic_routes(experts, top_k, (1, 1, 1, 4000), strength=1.0).experts
    counts = np.ones((ranks, experts), dtype=np.int64)
    orders = [expert_order(Random(), counts, seed) for seed in range(40)]
    found = [copies_of_token(chosen, devices(order, ranks)) for order in orders]
    assert np.mean(found) == pytest.approx(copies, rel=0.01)


def test_structure_index_follows_the_strength_of_topics() -> None:
    found = [
        structure_index(coactivation(routes(s, tokens=8000).experts, 32)) for s in (0, 1, 2, 4)
    ]
    assert found == sorted(found)
    assert found[0] < 0.05
    assert found[-1] > 0.3


def test_structure_index_of_blocks_is_the_part_that_is_elsewhere() -> None:
    pairs = np.kron(np.eye(2, dtype=np.int64), np.ones((4, 4), dtype=np.int64) * 10)
    np.fill_diagonal(pairs, 0)
    # Of 7 other experts, independent choices have 4 in the other block.
    assert structure_index(pairs) == pytest.approx(4 / 7, abs=1e-6)


@given(st.integers(0, 30), st.sampled_from([2, 4, 8]))
def test_groups_have_equal_sizes_and_swaps_never_lose_common_tokens(seed: int, ranks: int) -> None:
    pairs = coactivation(routes(2.0, seed, 200).experts, 32)
    greedy = greedy_groups(pairs, ranks)
    swapped = swapped_groups(pairs, greedy)
    for groups in (greedy, swapped):
        assert sorted(expert for group in groups for expert in group) == list(range(32))
        assert {len(group) for group in groups} == {32 // ranks}
    assert common_tokens(pairs, swapped) >= common_tokens(pairs, greedy)
    worse = [
        (a, b) for g, one in enumerate(swapped) for other in swapped[g + 1 :]
        for a in one for b in other
        if common_tokens(pairs, _swap(swapped, a, b)) > common_tokens(pairs, swapped)
    ] if seed < 3 else []  # fmt: skip
    assert not worse, "no swap of two experts adds common tokens"


def _swap(groups: list[list[int]], a: int, b: int) -> list[list[int]]:
    other = {a: b, b: a}
    return [[other.get(expert, expert) for expert in group] for group in groups]


def test_placement_finds_groups_that_tokens_never_leave() -> None:
    random = np.random.default_rng(3)
    blocks = random.permutation(32).reshape(4, 8)
    chosen = np.array([random.permutation(blocks[n % 4])[:4] for n in range(400)])
    pairs = coactivation(chosen, 32)
    counts = np.ones((4, 32), dtype=np.int64)
    for refine in ("none", "swap"):
        order = expert_order(Occult(refine), counts, 1, pairs)
        assert copies_of_token(chosen, devices(order, 4)) == 1.0


def test_groups_of_servers_are_split_into_groups_of_ranks() -> None:
    random = np.random.default_rng(3)
    blocks = random.permutation(32).reshape(4, 8)
    chosen = np.array([random.permutation(blocks[n % 4])[:4] for n in range(400)])
    order = Occult(group="server").experts_by_coactivation(coactivation(chosen, 32), 16, 4)
    assert sorted(order) == list(range(32))
    assert copies_of_token(chosen, devices(tuple(order), 4)) == 1.0


def test_placement_lowers_copies_of_tokens_that_it_has_not_seen() -> None:
    known = topic_routes(32, 4, (2, 1, 1, 4000), strength=2.0)
    counts, pairs = known.counts(32)[0, 0], coactivation(known.experts[0], 32)
    spread = np.ones((4, 1), dtype=np.int64) * counts
    found = {
        refine: copies_of_token(known.experts[1], devices(expert_order(place, spread, 1, pairs), 4))
        for refine, place in (("none", Occult()), ("swap", Occult("swap")))
    }
    assert found["swap"] <= found["none"] < 0.95 * expected_copies(32, 4, 4)


def test_balance_evens_out_loads_at_about_the_same_copies() -> None:
    known = topic_routes(32, 4, (2, 1, 1, 4000), strength=2.0)
    pairs, later = coactivation(known.experts[0], 32), known.experts[1]
    copies, deviation = [], []
    for place in (Occult("swap"), Occult("swap", balance=8)):
        device = devices(tuple(place.experts_by_coactivation(pairs, 4, 4)), 4)
        copies.append(copies_of_token(later, device))
        deviation.append(np.bincount(device[later].ravel()).std())
    assert deviation[1] < deviation[0] / 2
    assert copies[1] < copies[0] * 1.05
    with pytest.raises(ValueError, match="balance: 8 needs refine=swap"):
        Occult(balance=8)


def test_placement_without_routes_names_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"occult needs routes of single tokens.*gating.trace"):
        expert_order(Occult(), np.ones((4, 32), dtype=np.int64), 1)
    with pytest.raises(ValueError, match="group: 'leaf' is not one of rank, server"):
        Occult(group="leaf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="refine: 'best' is not one of none, swap"):
        Occult("best")  # type: ignore[arg-type]
