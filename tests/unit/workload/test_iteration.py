"""Iterations: attention, dispatch, experts and combine, and the same backwards."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from moefabric.config.model import preset
from moefabric.core.demand import Placement
from moefabric.workload.iterations.iteration import (
    AllReduce,
    Collective,
    Compute,
    DispatchLight,
    Layer,
    Operation,
    Reconfigure,
    forward_pass,
    iteration_operations,
    moe_layer,
)
from moefabric.workload.models.model import CountExchange, GroupedAttention, Model, Training

MODEL = Model(
    "small", layers=2, hidden=4, ffn=8, experts=4, top_k=2, attention=GroupedAttention(2, 2, 2)
)
TRAINING = Training(ep=4, tp=1, sequence=10, micro_batch=1, gpu_flops=1e3, utilisation=0.5)
PLACEMENT = Placement(("s0", "s1"), 4, 4)
GATING = np.array([[5, 5, 5, 5], [20, 0, 0, 0], [0, 0, 0, 20], [0, 20, 0, 0]])


def describe(operation: Operation) -> str:
    """An operation in words."""
    match operation:
        case Compute():
            behind = f" hiding {describe(operation.concurrent)}" if operation.concurrent else ""
            return f"{operation.direction} {operation.kind} {operation.layer}{behind}"
        case Reconfigure():
            return f"{operation.direction} light {operation.layer}"
        case Collective():
            beside = f" beside {describe(operation.concurrent)}" if operation.concurrent else ""
            return f"{operation.direction} {operation.kind} {operation.layer}{beside}"
        case AllReduce():
            return f"{operation.direction} {operation.kind} {operation.layer}"


def layers() -> list[Layer]:
    return [moe_layer(MODEL, TRAINING, PLACEMENT, gating) for gating in (GATING, GATING[::-1])]


def test_operations_of_an_iteration_of_two_layers() -> None:
    assert [
        describe(operation) for operation in iteration_operations(MODEL, TRAINING, layers())
    ] == [
        "forward attention 0",
        "forward light 0",
        "forward dispatch 0",
        "forward expert 0",
        "forward combine 0",
        "forward attention 1",
        "forward light 1",
        "forward dispatch 1",
        "forward expert 1",
        "forward combine 1",
        "backward combine 1",
        "backward expert 1",
        "backward dispatch 1",
        "backward attention 1 hiding backward light 0",
        "backward combine 0",
        "backward expert 0",
        "backward dispatch 0",
        "backward attention 0",
    ]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        pytest.param(
            "block", ["attention 0", "light 0", "dispatch 0", "expert 0", "combine 0"], id="block"
        ),
        pytest.param(
            "reuse",
            ["attention 0", "dispatch 0", "expert 0 hiding forward light 0", "combine 0"],
            id="reuse",
        ),
        pytest.param(
            "predict",
            [
                "attention 0 hiding forward light 0",
                "dispatch 0",
                "expert 0 hiding forward light 0",
                "combine 0",
            ],
            id="predict",
        ),
        pytest.param(
            "divert",
            ["attention 0", "dispatch 0 beside forward light 0", "expert 0", "combine 0"],
            id="divert",
        ),
    ],
)
def test_forward_pass_by_dispatch_light(first: DispatchLight, expected: list[str]) -> None:
    now, later = layers()
    operations = forward_pass(MODEL, TRAINING, 0, now, first, later.demand)
    assert [describe(operation) for operation in operations] == [
        f"forward {words}" for words in expected
    ]
    if first == "predict":
        attention, _, expert, _ = operations
        assert isinstance(attention, Compute)
        assert isinstance(expert, Compute)
        predicted = Reconfigure("forward", 0, later.demand, predicted=True)
        assert attention.concurrent == predicted, "what is foreseen"
        assert expert.concurrent == Reconfigure("forward", 0, now.demand), "and what came of it"


def test_predict_without_a_prediction_is_reuse() -> None:
    now, _ = layers()
    assert forward_pass(MODEL, TRAINING, 0, now, "predict", None) == forward_pass(
        MODEL, TRAINING, 0, now, "reuse"
    )


@pytest.mark.parametrize("first", get_args(DispatchLight))
def test_dispatch_light_changes_neither_bytes_nor_the_backward_pass(first: DispatchLight) -> None:
    usual, operations = (
        list(iteration_operations(MODEL, TRAINING, layers(), mode)) for mode in ("block", first)
    )
    assert operations[-8:] == usual[-8:]
    assert [o.demand for o in operations if isinstance(o, Collective)] == [
        o.demand for o in usual if isinstance(o, Collective)
    ]


def test_combine_and_backward_dispatch_are_transposed() -> None:
    both = layers()
    there, back = both[1].demand, both[1].demand.combine()
    by_name = {
        describe(o): o.demand
        for o in iteration_operations(MODEL, TRAINING, both)
        if isinstance(o, Collective)
    }
    assert by_name["forward dispatch 1"] == by_name["backward combine 1"] == there
    assert by_name["forward combine 1"] == by_name["backward dispatch 1"] == back
    assert there != back


def test_reconfiguration_during_backward_attention_is_for_the_next_layer() -> None:
    both = layers()
    hidden = [
        o.concurrent
        for o in iteration_operations(MODEL, TRAINING, both)
        if isinstance(o, Compute) and o.concurrent
    ]
    assert [light.demand for light in hidden] == [both[0].demand]


def test_layer_demand_is_tokens_times_their_bytes() -> None:
    layer = moe_layer(MODEL, TRAINING, PLACEMENT, GATING)
    assert layer.demand.array.tolist() == [[30 * 8, 10 * 8], [20 * 8, 20 * 8]], "8 bytes a token"
    assert layer.busiest_tokens == (25, 25), "on s0 both experts get 25, on s1 5 and 25"


def test_gating_rows_are_shares_of_a_ranks_tokens() -> None:
    assert moe_layer(MODEL, TRAINING, PLACEMENT, GATING * 7) == moe_layer(
        MODEL, TRAINING, PLACEMENT, GATING
    )


def test_rank_computes_all_of_its_experts() -> None:
    layer = moe_layer(
        MODEL, Training(2, 1, 10, 1, 1e3, 0.5), Placement(("s0", "s1"), 2, 4), GATING[:2]
    )
    assert layer.busiest_tokens == (30, 10)


def test_backward_pass_computes_twice_the_forward_pass() -> None:
    seconds = {
        describe(o): o.seconds
        for o in iteration_operations(MODEL, TRAINING, layers())
        if isinstance(o, Compute)
    }
    assert seconds["forward expert 0"] == pytest.approx((25 * 192 / 500,) * 2)
    assert seconds["backward expert 0"] == pytest.approx((2 * 25 * 192 / 500,) * 2)
    assert seconds["backward attention 0"] == pytest.approx(
        tuple(2 * s for s in seconds["forward attention 0"])
    )


LIMITED = replace(MODEL, hidden=256, top_k=4, node_limit=2, dispatch_type="fp8")
"""A model whose tokens go to at most two nodes, in FP8."""
FOUR = Placement(("s0", "s1", "s2", "s3"), 4, 4)


def test_combine_returns_as_many_tokens_in_bfloat16() -> None:
    layer = moe_layer(LIMITED, TRAINING, FOUR, GATING)
    by_name = {
        describe(operation): operation.demand
        for operation in iteration_operations(LIMITED, TRAINING, [layer])
        if isinstance(operation, Collective)
    }
    copies = layer.demand.array / (256 + 2 * 4)
    for name in ("forward dispatch 0", "backward combine 0"):
        assert by_name[name] == layer.demand
    for name in ("forward combine 0", "backward dispatch 0"):
        assert by_name[name].array == pytest.approx(copies.T * 256 * 2)


def test_token_goes_once_to_each_of_its_nodes() -> None:
    """10 tokens of 4 experts each: 10 on each server, or all on one."""
    gating = np.array([[5, 5, 5, 5], [20, 0, 0, 0], [10, 10, 0, 0], [2, 2, 2, 2]])
    copies = moe_layer(LIMITED, TRAINING, FOUR, gating).demand.array / (256 + 2 * 4)
    assert copies.tolist() == [[5, 5, 5, 5], [10, 0, 0, 0], [10, 10, 0, 0], [5, 5, 5, 5]]


@given(arrays.arrays(np.int64, (4, 4), elements=st.integers(0, 1000)))
def test_node_limit_bounds_copies_of_tokens(gating: NDArray[np.int64]) -> None:
    free = moe_layer(replace(LIMITED, node_limit=0), TRAINING, FOUR, gating)
    limited = moe_layer(LIMITED, TRAINING, FOUR, gating)
    experts, copies = (layer.demand.array / (256 + 2 * 4) for layer in (free, limited))
    tokens = TRAINING.rank_tokens * (1 + 1e-12)
    assert (copies <= experts + 1e-9).all(), "a copy serves at least one expert"
    assert (copies <= tokens).all(), "no token goes to a server twice"
    assert (copies.sum(axis=1) <= LIMITED.node_limit * tokens).all()
    assert (copies >= experts / LIMITED.top_k - 1e-9).all(), "and at most all experts of a token"
    assert limited.busiest_tokens == free.busiest_tokens, "experts compute as many tokens"


def test_bytes_of_deepseek_agree_with_its_training_profile() -> None:
    """Kernels of DeepSeek's training (deepseek-ai/profile-data, train.json) on 64 H800s.

    One micro-batch of 4,096 tokens with forced even gating: dispatches take 4.15 to 4.60 ms and
    combines 5.85 to 6.55 ms. Eight NICs of 400 Gb/s need less for the model's bytes. Without the
    limit of 4 nodes a token, they would need more than was measured for a combine.
    """
    model, training = preset("deepseek-r1"), Training(64, 1, 4096, 1, 1e15, 0.4)
    placement = Placement(tuple(f"s{number}" for number in range(8)), 64, 256)
    limited, free = (
        moe_layer(each, training, placement, np.ones((64, 256), dtype=np.int64)).demand
        for each in (model, replace(model, node_limit=0))
    )
    line_bytes_s = 8 * 400e9 / 8
    combine_s = model.combine_ratio / line_bytes_s
    assert limited.port_bytes.max() == pytest.approx(8 * 4096 * 4 * 7 / 8 * 7392)
    assert limited.port_bytes.max() / line_bytes_s == pytest.approx(2.12e-3, rel=1e-2)
    assert limited.port_bytes.max() * combine_s == pytest.approx(4.11e-3, rel=1e-2)
    assert free.port_bytes.max() * combine_s > 6.55e-3


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_servers_of_several_ranks_and_homes_give_the_same_demand(servers: int) -> None:
    names = tuple(f"s{number}" for number in range(servers))
    homes = tuple(rank * servers // 4 for rank in range(4))
    for model in (MODEL, LIMITED):
        filled = moe_layer(model, TRAINING, Placement(names, 4, 4), GATING)
        moved = moe_layer(model, TRAINING, Placement(names, 4, 4, homes), GATING)
        assert filled.demand.array.tolist() == moved.demand.array.tolist()
        assert filled.busiest_tokens == moved.busiest_tokens


@given(arrays.arrays(np.int64, (4, 4), elements=st.integers(0, 1000)))
def test_every_rank_sends_each_token_top_k_times(gating: NDArray[np.int64]) -> None:
    layer = moe_layer(MODEL, TRAINING, PLACEMENT, gating)
    gating_ranks = int((gating.sum(axis=1) > 0).sum())
    assert layer.demand.array.sum() == pytest.approx(gating_ranks * 10 * 2 * 8)


def test_ranks_exchange_token_counts_before_forward_dispatches_only() -> None:
    """Four ranks pass on the numbers of the three others, 8 bytes for each of four experts."""
    counting = replace(TRAINING, message_latency_s=2e-6)
    collectives = [
        one
        for one in iteration_operations(MODEL, counting, layers())
        if isinstance(one, Collective)
    ]
    counted = {(one.kind, one.direction) for one in collectives if one.counts is not None}
    assert counted == {("dispatch", "forward")}
    assert collectives[0].counts == CountExchange(3, 32, 2e-6)
    assert collectives[0].counts.seconds(8e6) == pytest.approx(3 * (2e-6 + 32e-6))
    silent = iteration_operations(MODEL, TRAINING, layers())
    assert all(one.counts is None for one in silent if isinstance(one, Collective))
