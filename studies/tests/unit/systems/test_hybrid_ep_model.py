"""HybridEP: domains, counts of messages, the formula, and execution graphs."""

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
from moefabric_studies.codecs.expert_codec import decode, encode, shared_expert
from moefabric_studies.systems.hybrid_ep.graph import HybridEpPass, distinct_share, plain_pass
from moefabric_studies.systems.hybrid_ep.stream_model import (
    Level,
    MoeLayer,
    Relation,
    all_to_all_s,
    best_domains,
    candidates,
    groups,
    layer_s,
    token_share,
    worker_bytes,
)

from moefabric.workload.graphs.timeline import lengths_s

TABLE_VII = [
    (8, 1, 56, 0), (8, 2, 24, 8), (8, 4, 8, 24), (8, 8, 0, 56),
    (16, 1, 240, 0), (16, 2, 112, 16), (16, 4, 48, 48), (16, 8, 16, 112), (16, 16, 0, 240),
]  # fmt: skip
NIC = Level(8, 1e9)
KINDS: tuple[Relation, Relation] = ("tokens", "experts")


def message_counts(levels: Sequence[int], domains: Sequence[int]) -> tuple[int, int]:
    """Return the messages of one all-to-all and of the all-gather of experts (table VII)."""
    tokens, experts = (
        sum(
            len(group) * (len(group) - 1)
            for level in range(len(levels))
            for group in groups(levels, domains, level, kind)
        )
        for kind in KINDS
    )
    return tokens, experts


def best_token_share(layer: MoeLayer, level: Level) -> float:
    """Return the optimal p of one level in closed form, without regard to whole workers."""
    others = level.workers - 1
    if 2 * layer.token_bytes >= level.workers * layer.expert_bytes:
        return 0.0
    return max(0.0, 1 - level.bytes_per_s * layer.pre_expert_s / (layer.expert_bytes * others))


@pytest.mark.parametrize(("workers", "domain", "tokens", "experts"), TABLE_VII)
def test_message_counts_are_those_of_table_vii(
    workers: int, domain: int, tokens: int, experts: int
) -> None:
    assert message_counts([workers], [domain]) == (tokens, experts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("domains", list(candidates((4, 4))))
def test_workers_of_a_group_differ_in_one_digit(domains: tuple[int, ...], kind: Relation) -> None:
    for level, size in enumerate(domains):
        for group in groups((4, 4), domains, level, kind):
            digits = np.unravel_index(group, (4, 4))
            own, other = digits[level], digits[1 - level]
            assert len(set(own)) == len(group)
            assert len(set(other)) == 1
            assert len(set(own // size)) == (1 if kind == "experts" else 4 // size)
            assert len(set(own % size)) == (size if kind == "experts" else 1)


@pytest.mark.parametrize("domains", list(candidates((2, 4))))
def test_every_worker_has_or_reaches_every_expert(domains: tuple[int, ...]) -> None:
    """Experts that are held, times workers that tokens reach, are all experts."""
    for level, size in enumerate((2, 4)):
        experts = groups((2, 4), domains, level, "experts")
        tokens = groups((2, 4), domains, level, "tokens")
        held = {len(group) for group in experts} or {1}
        reached = {len(group) for group in tokens} or {1}
        assert (held, reached) == ({domains[level]}, {size // domains[level]})


@pytest.mark.parametrize(
    ("layer", "domain"),
    [
        (MoeLayer(16e6, 32e6, 5e-3), 1),
        (MoeLayer(16e6, 8e6, 10e-3), 2),
        (MoeLayer(16e6, 8e6, 25e-3), 4),
        (MoeLayer(24e6, 2e6, 10e-3), 8),
    ],
)
def test_best_domains_are_the_closest_to_the_optimum_in_closed_form(
    layer: MoeLayer, domain: int
) -> None:
    shares = {size: token_share(8, size) for (size,) in candidates([8])}
    optimum = best_token_share(layer, NIC)
    assert best_domains(layer, [NIC]) == (domain,)
    assert min(shares, key=lambda size: abs(shares[size] - optimum)) == domain


def test_formula_has_no_optimum_below_that_of_its_candidates() -> None:
    layer = MoeLayer(16e6, 8e6, 12e-3)
    best_s = layer_s(layer, [NIC], best_domains(layer, [NIC]))
    assert all(best_s <= layer_s(layer, [NIC], domains) for domains in candidates([8]))
    assert layer_s(layer, [NIC], (1,)) == pytest.approx(12e-3 + 2 * 14e-3)
    assert layer_s(layer, [NIC], (8,)) == pytest.approx(56e-3)
    assert layer_s(layer, [NIC], (8,), prefetch=False) == pytest.approx(68e-3)


def test_experts_cross_an_outer_level_once() -> None:
    layer, levels = MoeLayer(0.0, 1e6, 0.0), [Level(2, 1e6), Level(4, 1e9)]
    assert layer_s(layer, levels, (2, 4)) == pytest.approx(1 + 2 * 3e-3)


@pytest.mark.parametrize("domain", [1, 2, 4, 8])
def test_graph_on_an_ideal_network_takes_the_time_of_the_formula(domain: int) -> None:
    layer = MoeLayer(16e6, 8e6, 12e-3)
    sent = HybridEpPass((8,), (domain,), (16e6,), 8e6, 12e-3)
    assert not list(sent.graph().faults())
    assert lengths_s(sent.graph(), [1e9]) == [pytest.approx(layer_s(layer, [NIC], (domain,)))]


@pytest.mark.parametrize("domains", list(candidates((2, 4))))
def test_graph_of_two_levels_has_no_faults_and_all_bytes(domains: tuple[int, ...]) -> None:
    sent = HybridEpPass((2, 4), domains, (8e6, 8e6), 1e6, 1e-3, 2e-3, gradient_bytes=1e6)
    graph = sent.graph()
    assert not list(graph.faults())
    sizes = {
        (node.collective, node.group[:8]): node.size
        for node in graph.ranks[0]
        if node.kind == "collective"
    }
    if domains[1] > 1:
        assert sizes["all_gather", "experts-"] == 1e6 * domains[0]
        assert sizes["reduce_scatter", "experts-"] == 1e6 * domains[0] * (
            1 if domains[0] > 1 else domains[1]
        )
    if domains == (1, 1):
        assert prod(domains) == 1
        assert not any("experts" in group for group in graph.groups)


def test_gathered_experts_delay_the_dispatch_only_if_they_take_longer_than_attention() -> None:
    short = HybridEpPass((8,), (8,), (0.0,), 1e6, 10e-3, encode_s=1e-3, decode_s=1e-4)
    assert lengths_s(short.graph(), [1e9]) == [pytest.approx(10e-3)]
    late = HybridEpPass((8,), (8,), (0.0,), 1e6, 10e-3, encode_s=6e-3, decode_s=1e-4)
    assert lengths_s(late.graph(), [1e9]) == [pytest.approx((6 + 7 + 0.7) * 1e-3)]


@pytest.mark.parametrize("domain", [2, 8])
def test_backward_pass_follows_the_forward_pass(domain: int) -> None:
    sent = HybridEpPass((8,), (domain,), (8e6,), 1e6, 10e-3, 5e-3)
    all_to_alls_s = 4 * 8e-3 * (1 - domain / 8)
    assert lengths_s(sent.graph(), [1e9]) == [pytest.approx(15e-3 + all_to_alls_s)]


def test_plain_pass_is_four_all_to_alls_and_computation() -> None:
    graph = plain_pass(8, 8e6, 1e-3, 2e-3).graph()
    assert lengths_s(graph, [1e9]) == [pytest.approx(3e-3 + 4 * 7e-3)]
    assert all_to_all_s(MoeLayer(8e6, 0.0, 0.0), [NIC], (1,)) == pytest.approx(7e-3)


def test_bytes_of_a_worker_follow_the_formula() -> None:
    layer = MoeLayer(16.0, 2.0, 0.0)
    assert [worker_bytes(layer, 8, domain) for domain in (1, 2, 8)] == [28, 26, 14]


def test_tokens_for_two_experts_of_a_data_centre_go_there_once() -> None:
    assert distinct_share(2, 2) == 0.75
    assert distinct_share(4, 2) == 0.875
    assert distinct_share(4, 1) == 1.0


def test_codec_keeps_the_largest_residuals_and_counts_indices() -> None:
    generator = np.random.default_rng(1)
    experts = [generator.standard_normal(10_000, dtype=np.float32) for _ in range(4)]
    shared = shared_expert(experts)
    code = encode(experts[0], shared, 50.0)
    assert experts[0].nbytes / len(code) == 50.0
    decoded, residual = decode(code, shared), np.abs(experts[0] - shared)
    kept = decoded != shared
    assert kept.sum() == 100
    assert residual[kept].min() >= residual[~kept].max()
    np.testing.assert_allclose(decoded[kept], experts[0][kept], rtol=1e-5, atol=1e-6)


def test_codec_finds_large_residuals_that_a_sample_misses() -> None:
    expert, shared = np.zeros(6400, np.float32), np.zeros(6400, np.float32)
    expert[::64] = 1.0  # the sample has these numbers only
    expert[1::64] = 2.0
    decoded = decode(encode(expert, shared, 32.0), shared)
    assert decoded.sum() == 200.0


def test_codec_with_all_residuals_is_exact() -> None:
    experts = [np.arange(8, dtype=np.float32), np.ones(8, dtype=np.float32)]
    shared = shared_expert(experts)
    np.testing.assert_array_equal(decode(encode(experts[0], shared, 0.5), shared), experts[0])
