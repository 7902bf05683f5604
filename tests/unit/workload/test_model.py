"""FLOPs and bytes of known models, computed by hand, and compared with published totals."""

from dataclasses import replace
from math import inf

import pytest

from moefabric.config.model import preset, presets
from moefabric.workload.models.model import DIRECTIONS, Model, Training

MIXTRAL = preset("mixtral-8x7b")
QWEN = preset("qwen1.5-moe-a2.7b")
DEEPSEEK = preset("deepseek-r1")
PROTOTYPE = Training(8, 4, 4096, 8, 312e12, 0.4, nvlink_bytes_s=inf)


def test_token_bytes_are_the_hidden_size_in_bfloat16() -> None:
    assert MIXTRAL.token_bytes == MIXTRAL.dispatch_token_bytes == 8192
    assert MIXTRAL.combine_ratio == 1.0


def test_fp8_token_has_a_byte_a_number_and_a_scale_for_each_128() -> None:
    assert DEEPSEEK.token_bytes == 14336
    assert DEEPSEEK.dispatch_token_bytes == 7168 + 56 * 4 == 7392
    assert DEEPSEEK.combine_ratio == pytest.approx(1.93939, rel=1e-5)


def test_expert_flops_of_three_matrices() -> None:
    assert MIXTRAL.expert_flops() == 2 * 3 * 4096 * 14336 == 352_321_536


def test_attention_flops_of_four_projections_and_half_the_scores() -> None:
    query_and_output, key_and_value = 2 * 4096 * 4096, 2 * 4096 * 1024
    scores_and_values = 2 * 4096 * 4096
    assert (
        MIXTRAL.attention_flops(4096)
        == 2 * (query_and_output + key_and_value) + scores_and_values
        == 117_440_512
    )


def test_latent_attention_flops_of_five_matrices_and_half_the_scores() -> None:
    queries = 7168 * 1536 + 1536 * 128 * (128 + 64)
    keys_and_values = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    output = 128 * 128 * 7168
    assert DEEPSEEK.attention_weights == queries + keys_and_values + output == 187_105_280
    scores_and_values = 128 * (128 + 64 + 128) * 4096
    assert DEEPSEEK.attention_flops(4096) == 2 * 187_105_280 + scores_and_values == 541_982_720


@pytest.mark.parametrize(
    ("model", "router", "shared"),
    [
        pytest.param(MIXTRAL, 2 * 4096 * 8, 0, id="8x7b"),
        pytest.param(QWEN, 2 * 2048 * 60, 2 * 3 * 2048 * 5632, id="qwen-moe"),
        pytest.param(DEEPSEEK, 2 * 7168 * 256, 2 * 3 * 7168 * 2048, id="deepseek-r1"),
    ],
)
def test_own_rank_computes_attention_router_and_shared_expert(
    model: Model, router: int, shared: int
) -> None:
    attention = model.attention_flops(4096)
    assert model.replicated_flops(4096) == attention + router + shared


def test_shared_expert_of_qwen_equals_its_four_routed_experts() -> None:
    shared = 2 * 3 * QWEN.hidden * QWEN.shared_ffn
    assert shared == QWEN.top_k * QWEN.expert_flops() == 69_206_016


def test_head_and_layers_without_experts() -> None:
    assert MIXTRAL.head_flops() == 2 * 4096 * 32000
    assert DEEPSEEK.head_flops() == 2 * 7168 * 129280
    dense = DEEPSEEK.attention_flops(4096) + 2 * 3 * 7168 * 18432
    assert DEEPSEEK.dense_layer_flops(4096) == dense
    experts = DEEPSEEK.top_k * DEEPSEEK.expert_flops()
    moe = DEEPSEEK.replicated_flops(4096) + experts - 2 * 7168 * 256
    assert dense == moe, "a dense block is as wide as 8 routed experts and the shared one"


def test_attention_seconds_of_a_rank_of_four_gpus() -> None:
    router = 2 * 4096 * 8
    assert PROTOTYPE.rank_tokens == 32768
    assert PROTOTYPE.rank_flops == pytest.approx(499.2e12)
    assert PROTOTYPE.attention_s(MIXTRAL) == pytest.approx(
        32768 * (117_440_512 + router) / 499.2e12
    )
    assert PROTOTYPE.attention_s(MIXTRAL) == pytest.approx(0.0077088, rel=1e-3)
    assert PROTOTYPE.expert_s(MIXTRAL, 65536) == pytest.approx(0.046253, rel=1e-4)


def test_layer_has_four_tensor_all_reduces() -> None:
    """Mixtral 8x22B on NVSwitches of 450 GB/s each way: 6.3 ms a layer."""
    model, free = preset("mixtral-8x22b"), Training(8, 8, 4096, 8, 312e12, 0.4, inf)
    bound = replace(free, nvlink_bytes_s=450e9)
    all_reduce_s = 2 * 7 / 8 * 32768 * 6144 * 2 / 450e9
    assert bound.tensor_all_reduce_s(model) == pytest.approx(all_reduce_s)

    def layer_s(training: Training) -> float:
        return sum(
            training.attention_s(model, direction) + training.expert_s(model, 65536, direction)
            for direction in DIRECTIONS
        )

    assert layer_s(bound) - layer_s(free) == pytest.approx(4 * all_reduce_s)
    assert 4 * all_reduce_s == pytest.approx(6.26e-3, rel=1e-3)
    assert replace(bound, tp=1).tensor_all_reduce_s(model) == 0.0


def test_recomputation_adds_a_forward_pass_to_the_backward_pass() -> None:
    kept = Training(8, 4, 4096, 8, 312e12, 0.4)
    again = replace(kept, recomputation=True)
    forward, backward, repeated = (
        (
            training.attention_s(MIXTRAL, direction),
            training.expert_s(MIXTRAL, 65536, direction),
            training.dense_layer_s(DEEPSEEK, direction),
        )
        for training, direction in (
            (kept, DIRECTIONS[0]),
            (kept, DIRECTIONS[1]),
            (again, DIRECTIONS[1]),
        )
    )
    assert repeated == pytest.approx([a + b for a, b in zip(forward, backward, strict=True)])
    assert again.attention_s(MIXTRAL) == forward[0]
    assert again.head_s(MIXTRAL, "backward") == kept.head_s(MIXTRAL, "backward")


@pytest.mark.parametrize("model", [preset(name) for name in presets()], ids=presets())
def test_flops_of_a_token_are_twice_its_active_weights_and_its_scores(model: Model) -> None:
    total, layers = model.token_flops(4096), model.layers + model.dense_layers
    scores = layers * model.score_flops(4096)
    assert total - scores == 2 * (
        model.active_weights - model.head_weights * (not model.tied_embeddings)
    )
    assert scores < 0.5 * total


def test_roofline_adds_what_memory_moves_value_by_value() -> None:
    """At 32,768 tokens, matrices are bound by FLOPs; SwiGLU and the order of tokens aren't."""
    rank = replace(PROTOTYPE, compute="roofline")
    tokens, per_gpu = 65536, MIXTRAL.ffn / PROTOTYPE.tp
    added = 2 * tokens * (3 * per_gpu + MIXTRAL.hidden) / PROTOTYPE.memory_bytes_s
    plain_s = PROTOTYPE.expert_s(MIXTRAL, tokens)
    assert rank.expert_s(MIXTRAL, tokens) == pytest.approx(plain_s + added)
    assert rank.expert_s(MIXTRAL, tokens, "backward") == pytest.approx(
        PROTOTYPE.expert_s(MIXTRAL, tokens, "backward") + 2 * added
    )


def test_experts_of_few_tokens_last_until_their_weights_are_read() -> None:
    rank = replace(PROTOTYPE, compute="roofline", micro_batch=1, sequence=16)
    weights = 2 * MIXTRAL.expert_weights * MIXTRAL.experts / rank.ep / rank.tp
    seconds = rank.expert_s(MIXTRAL, 1) - rank.tensor_all_reduce_s(MIXTRAL)
    assert seconds == pytest.approx(weights / rank.memory_bytes_s, rel=1e-3)
    flops = replace(rank, compute="flops")
    assert seconds > 50 * (flops.expert_s(MIXTRAL, 1) - flops.tensor_all_reduce_s(MIXTRAL))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1"])
def test_roofline_is_never_faster_than_flops(name: str) -> None:
    model = preset(name)
    rank = replace(PROTOTYPE, compute="roofline")
    for direction in DIRECTIONS:
        assert rank.attention_s(model, direction) > PROTOTYPE.attention_s(model, direction)
        assert rank.head_s(model, direction) > PROTOTYPE.head_s(model, direction)
        dense_s = PROTOTYPE.dense_layer_s(model, direction)
        assert rank.dense_layer_s(model, direction) > dense_s
