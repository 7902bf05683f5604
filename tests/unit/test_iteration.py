"""An iteration is attention, gate, dispatch, experts and combine, layer by layer, and all of it backwards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from moefabric.demand import Placement
from moefabric.iteration import (
    FIRST,
    Collective,
    Compute,
    First,
    Layer,
    Operation,
    Reconfigure,
    forward,
    layer,
    operations,
)
from moefabric.model import Model, Training

MODEL = Model("small", layers=2, hidden=4, ffn=8, experts=4, top_k=2, kv_hidden=4)
TRAINING = Training(ep=4, tp=1, sequence=10, micro_batch=1, gpu_flops=1e3, utilisation=0.5)
PLACEMENT = Placement(("s0", "s1"), 4, 4)
GATING = np.array([[5, 5, 5, 5], [20, 0, 0, 0], [0, 0, 0, 20], [0, 20, 0, 0]])


def told(operation: Operation) -> str:
    """An operation in words."""
    match operation:
        case Compute():
            behind = f" hiding {told(operation.meanwhile)}" if operation.meanwhile else ""
            return f"{operation.direction} {operation.kind} {operation.layer}{behind}"
        case Reconfigure():
            return f"{operation.direction} light {operation.layer}"
        case Collective():
            beside = f" beside {told(operation.meanwhile)}" if operation.meanwhile else ""
            return f"{operation.direction} {operation.kind} {operation.layer}{beside}"


def layers() -> list[Layer]:
    return [layer(MODEL, TRAINING, PLACEMENT, gating) for gating in (GATING, GATING[::-1])]


def test_an_iteration_of_two_layers_is_this() -> None:
    assert [told(operation) for operation in operations(MODEL, TRAINING, layers())] == [
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
    ("first", "said"),
    [
        pytest.param("block", ["attention 0", "light 0", "dispatch 0", "expert 0", "combine 0"], id="block"),
        pytest.param(
            "reuse", ["attention 0", "dispatch 0", "expert 0 hiding forward light 0", "combine 0"], id="reuse"
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
def test_what_a_first_all_to_all_does_about_its_light(first: First, said: list[str]) -> None:
    now, later = layers()
    made = forward(MODEL, TRAINING, 0, now, first, later.demand)
    assert [told(operation) for operation in made] == [f"forward {each}" for each in said]
    if first == "predict":
        attention, _, expert, _ = made
        assert isinstance(attention, Compute)
        assert isinstance(expert, Compute)
        assert attention.meanwhile == Reconfigure("forward", 0, later.demand), "what is foreseen"
        assert expert.meanwhile == Reconfigure("forward", 0, now.demand), "and what came of it"


def test_a_layer_of_which_nothing_is_foreseen_is_as_with_reuse() -> None:
    now, _ = layers()
    assert forward(MODEL, TRAINING, 0, now, "predict", None) == forward(MODEL, TRAINING, 0, now, "reuse")


@pytest.mark.parametrize("first", FIRST)
def test_the_pass_back_and_every_byte_are_the_same_under_all_policies(first: First) -> None:
    usual, made = (list(operations(MODEL, TRAINING, layers(), each)) for each in ("block", first))
    assert made[-8:] == usual[-8:]
    assert [o.demand for o in made if isinstance(o, Collective)] == [
        o.demand for o in usual if isinstance(o, Collective)
    ]


def test_combine_is_the_way_back_and_the_backward_pass_goes_both_ways_again() -> None:
    made = layers()
    there, back = made[1].demand, made[1].demand.combine()
    by_name = {told(o): o.demand for o in operations(MODEL, TRAINING, made) if isinstance(o, Collective)}
    assert by_name["forward dispatch 1"] == by_name["backward combine 1"] == there
    assert by_name["forward combine 1"] == by_name["backward dispatch 1"] == back
    assert there != back


def test_the_light_that_hides_behind_attention_is_for_the_layer_that_comes_next() -> None:
    made = layers()
    hidden = [
        o.meanwhile for o in operations(MODEL, TRAINING, made) if isinstance(o, Compute) and o.meanwhile
    ]
    assert [light.demand for light in hidden] == [made[0].demand]


def test_a_layers_demand_is_tokens_times_their_bytes() -> None:
    made = layer(MODEL, TRAINING, PLACEMENT, GATING)
    assert made.demand.array.tolist() == [[30 * 8, 10 * 8], [20 * 8, 20 * 8]], "8 bytes a token"
    assert made.busiest_tokens == (25, 25), "on s0 both experts get 25, on s1 5 and 25"


def test_rows_of_a_gating_matrix_are_shares_of_a_ranks_own_tokens() -> None:
    assert layer(MODEL, TRAINING, PLACEMENT, GATING * 7) == layer(MODEL, TRAINING, PLACEMENT, GATING)


def test_a_rank_of_several_experts_computes_them_all() -> None:
    made = layer(MODEL, Training(2, 1, 10, 1, 1e3, 0.5), Placement(("s0", "s1"), 2, 4), GATING[:2])
    assert made.busiest_tokens == (30, 10)


def test_a_pass_back_computes_twice_the_pass_forward() -> None:
    seconds = {told(o): o.seconds for o in operations(MODEL, TRAINING, layers()) if isinstance(o, Compute)}
    assert seconds["forward expert 0"] == pytest.approx((25 * 192 / 500,) * 2)
    assert seconds["backward expert 0"] == pytest.approx((2 * 25 * 192 / 500,) * 2)
    assert seconds["backward attention 0"] == pytest.approx(
        tuple(2 * s for s in seconds["forward attention 0"])
    )


@given(arrays.arrays(np.int64, (4, 4), elements=st.integers(0, 1000)))
def test_every_rank_that_gates_at_all_sends_each_token_top_k_times(gating: NDArray[np.int64]) -> None:
    made = layer(MODEL, TRAINING, PLACEMENT, gating)
    gating_ranks = int((gating.sum(axis=1) > 0).sum())
    assert made.demand.array.sum() == pytest.approx(gating_ranks * 10 * 2 * 8)
