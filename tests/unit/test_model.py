"""FLOPs and bytes of known models, worked out by hand."""

from typing import get_args

import pytest

from moefabric.model import MODELS, Known, Training

MIXTRAL = MODELS["mixtral-8x7b"]
PROTOTYPE = Training(ep=8, tp=4, sequence=4096, micro_batch=8, gpu_flops=312e12, utilisation=0.4)


def test_a_token_is_its_hidden_numbers_in_bfloat16() -> None:
    assert MIXTRAL.token_bytes == 8192


def test_an_expert_is_three_matrices_of_4096_by_14336() -> None:
    assert MIXTRAL.expert_flops() == 2 * 3 * 4096 * 14336 == 352_321_536


def test_attention_is_four_projections_and_half_the_scores() -> None:
    query_and_output, key_and_value = 2 * 4096 * 4096, 2 * 4096 * 1024
    scores_and_values = 2 * 4096 * 4096
    assert (
        MIXTRAL.attention_flops(4096)
        == 2 * (query_and_output + key_and_value) + scores_and_values
        == 117_440_512
    )


def test_a_ranks_four_gpus_share_its_32768_tokens() -> None:
    assert PROTOTYPE.rank_tokens == 32768
    assert PROTOTYPE.rank_flops == pytest.approx(499.2e12)
    assert PROTOTYPE.attention_s(MIXTRAL) == pytest.approx(32768 * 117_440_512 / 499.2e12)
    assert PROTOTYPE.attention_s(MIXTRAL) == pytest.approx(0.0077088, rel=1e-4)
    assert PROTOTYPE.expert_s(MIXTRAL, 65536) == pytest.approx(0.046253, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        pytest.param("mixtral-8x7b", 45.1, id="8x7b"),
        pytest.param("mixtral-8x22b", 135.3, id="8x22b"),
        pytest.param("llama-moe", 4.3, id="llama-moe-of-6.7"),
        pytest.param("qwen-moe", 13.3, id="qwen-moe-of-14.3"),
        pytest.param("deepseek-r1", 653.9, id="deepseek-r1-of-671"),
    ],
)
def test_the_experts_of_a_model_hold_the_weights_that_its_name_promises(name: str, billions: float) -> None:
    model = MODELS[name]
    weights = model.layers * model.experts * model.expert_flops() / 2
    assert weights / 1e9 == pytest.approx(billions, rel=0.01)


def test_every_model_can_be_named() -> None:
    assert set(get_args(Known)) == set(MODELS)
