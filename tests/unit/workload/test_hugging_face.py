"""Configurations of Hugging Face: published counts and FLOPs, and what isn't known in them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from moefabric.core.errors import SpecError
from moefabric.workload.models.hugging_face import ARCHITECTURES, model_from_configuration
from moefabric.workload.models.model import (
    GroupedAttention,
    HybridAttention,
    LatentAttention,
    Model,
)
from tests.support.paths import REPOSITORY

CONFIGURATIONS: dict[str, dict[str, Any]] = json.loads(
    (REPOSITORY / "tests/data/model-configurations.json").read_text()
)
"""Values of `config.json` by preset, as published on Hugging Face."""

IMAGE_LAYER = 4 * (1408 * 1408 + 1408) + 2 * 1408 * 5632 + 5632 + 1408 + 4 * 1408
IMAGE_EMBEDDINGS = 588 * 1408 + 1408 + 577 * 1408 + 4 * 1408
IMAGE_PROJECTIONS = 5632 * 4096 + 4096 * 4096 + 4096 * 5120
IMAGES = 34 * IMAGE_LAYER + IMAGE_EMBEDDINGS + IMAGE_PROJECTIONS
"""Weights of Llama 4 Scout that read images, by its `vision_config`."""


def read(name: str, **changes: Any) -> Model:
    return model_from_configuration(CONFIGURATIONS[name] | changes, name)


def fault_of(name: str, **changes: Any) -> str:
    with pytest.raises(SpecError) as error:
        read(name, **changes)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # "total" of the weights' index on Hugging Face (safetensors)
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("qwen1.5-moe-a2.7b", 14_315_784_192),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v2", 235_741_434_880),
        ("deepseek-v2-lite", 15_706_484_224),
        ("olmoe-1b-7b", 6_919_161_856),
        ("llama4-scout", 108_641_793_536 - IMAGES),
        ("gpt-oss-120b", 116_829_156_672),
        ("gpt-oss-20b", 20_914_757_184),
        ("granite-1b-a400m", 1_334_628_352),
        ("granite-3b-a800m", 3_298_793_472),
    ],
)
def test_parameters_are_those_of_the_published_weights(name: str, parameters: int) -> None:
    assert read(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 46.7),  # arXiv 2401.04088
        ("mixtral-8x22b", 141),  # mistral.ai/news/mixtral-8x22b
        ("qwen1.5-moe-a2.7b", 14.3),  # model card
        ("qwen2-57b-a14b", 57.41),  # model card
        ("qwen3-30b-a3b", 30.5),  # model card
        ("qwen3-235b-a22b", 235),  # model card
        ("deepseek-v2", 236),  # arXiv 2405.04434
        ("deepseek-v2-lite", 15.7),  # arXiv 2405.04434, appendix B
        ("deepseek-v3", 671),  # arXiv 2412.19437
        ("olmoe-1b-7b", 6.9),  # arXiv 2409.02060
        ("llama4-maverick", 400),  # model card
        ("gpt-oss-120b", 116.83),  # arXiv 2508.10925, table 1
        ("gpt-oss-20b", 20.91),  # arXiv 2508.10925, table 1
        ("granite-3b-a800m", 3.3),  # model card
        ("glm-4.5", 355),  # arXiv 2508.06471, table 1: with the layer of multi-token prediction
        ("glm-4.5-air", 106),  # arXiv 2508.06471, table 1
        ("minimax-m2", 230),  # model card
        ("qwen3-next-80b-a3b", 80),  # model card
    ],
)
def test_parameters_are_within_one_percent_of_publications(name: str, billions: float) -> None:
    assert read(name).parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_parameters_of_kimi_k2_are_those_of_its_weights() -> None:
    """1.03 T on Hugging Face; arXiv 2507.20534 writes 1.04 trillion."""
    assert read("kimi-k2").parameters / 1e9 == pytest.approx(1_026, abs=1)
    assert read("kimi-k2").parameters / 1e12 == pytest.approx(1.04, rel=0.015)


@pytest.mark.parametrize(
    ("name", "billions", "digit", "embeddings"),
    [
        ("mixtral-8x7b", 12.9, 0.1, True),  # arXiv 2401.04088
        ("mixtral-8x22b", 39, 1, True),  # mistral.ai/news/mixtral-8x22b
        ("qwen1.5-moe-a2.7b", 2.7, 0.1, True),  # model card
        ("qwen2-57b-a14b", 14, 1, True),  # model card
        ("qwen3-30b-a3b", 3.3, 0.1, True),  # model card
        ("qwen3-235b-a22b", 22, 1, True),  # model card
        ("deepseek-v2", 21, 1, True),  # arXiv 2405.04434
        ("deepseek-v2-lite", 2.4, 0.1, False),  # arXiv 2405.04434, appendix B
        ("deepseek-v3", 36.7, 0.1, False),  # README_WEIGHTS.md of the weights
        ("olmoe-1b-7b", 1.3, 0.1, True),  # arXiv 2409.02060
        ("llama4-scout", 17, 1, True),  # model card
        ("llama4-maverick", 17, 1, True),  # model card
        ("gpt-oss-120b", 5.13, 0.01, False),  # arXiv 2508.10925, table 1
        ("gpt-oss-20b", 3.61, 0.01, False),  # arXiv 2508.10925, table 1
        ("granite-1b-a400m", 0.4, 0.1, False),  # model card
        ("granite-3b-a800m", 0.8, 0.1, False),  # model card
        ("kimi-k2", 32, 1, True),  # arXiv 2507.20534
        ("glm-4.5", 32, 1, False),  # arXiv 2508.06471, table 1
        ("glm-4.5-air", 12, 1, False),  # arXiv 2508.06471, table 1
        ("minimax-m2", 10, 1, False),  # model card
        ("qwen3-next-80b-a3b", 3, 1, False),  # model card
    ],
)
def test_active_parameters_are_the_published_ones(
    name: str, billions: float, digit: float, embeddings: bool
) -> None:
    """Within 1 %, or a figure that rounds or is cut to the published digits.

    Publishers count the embeddings' table, or leave it out.
    """
    model = read(name)
    active = model.active_parameters - (0 if embeddings else model.head_weights)
    figure = active / 1e9
    written = billions - digit / 2 <= figure < billions + digit
    assert written or figure == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(("name", "giga"), [("deepseek-v3", 250), ("deepseek-v2", 155)])
def test_flops_of_training_a_token_are_the_published_ones(name: str, giga: float) -> None:
    """Sequences of 4,096 tokens, forward and backward: arXiv 2505.09343, table 2."""
    assert 3 * read(name).token_flops(4096) / 1e9 == pytest.approx(giga, rel=0.01)


def test_model_without_preset_has_its_published_parameters() -> None:
    """Qwen3-Coder-480B-A35B: its weights' index, and 35 billion active on its model card."""
    coder = read(
        "qwen3-235b-a22b",
        hidden_size=6144,
        num_hidden_layers=62,
        num_attention_heads=96,
        num_key_value_heads=8,
        num_experts=160,
        moe_intermediate_size=2560,
        qkv_bias=False,
        shared_expert_intermediate_size=0,
        use_qk_norm=True,
    )
    assert coder.parameters == 480_154_875_392
    assert round(coder.active_parameters / 1e9) == 35


def test_every_architecture_has_a_configuration() -> None:
    texts = [values.get("text_config", values) for values in CONFIGURATIONS.values()]
    classes = {name for values in texts for name in values.get("architectures", ())}
    kinds = {values["model_type"] for values in texts}
    table = json.loads((REPOSITORY / "moefabric/workload/models/architectures.json").read_text())
    named = table["architectures"]
    assert set(named) == set(ARCHITECTURES)
    assert {kind for kind in named if kind in kinds or named[kind]["class"] in classes} == {*named}


@pytest.mark.parametrize(
    ("name", "kind", "known"),
    [("kimi-k2", "kimi_k2", "deepseek_v3"), ("minimax-m2", "minimax", "minimax_m2")],
)
def test_a_model_is_told_by_its_class_if_its_type_is_not_known(
    name: str, kind: str, known: str
) -> None:
    model = read(name)
    class_name = CONFIGURATIONS[name]["architectures"][0]
    note = f"model_type {kind} was read as {known}, because of its {class_name}"
    assert model.notes == (note,)
    assert read(name, model_type=known) == model
    assert read(name, model_type=known).notes == ()


def test_text_part_of_a_model_with_other_parts_is_read() -> None:
    """As of Kimi K2.5, which sees images."""
    text = CONFIGURATIONS["kimi-k2"]
    whole = {"model_type": "kimi_k25", "text_config": text, "vision_config": {"hidden_size": 1152}}
    model = model_from_configuration(whole, "kimi")
    assert model.notes[-1] == "the text part of kimi_k25, without its other parts"
    assert model.parameters == read("kimi-k2").parameters
    with pytest.raises(SpecError, match=r"^text_config.model_type: 'gpt2' isn't known"):
        model_from_configuration(whole | {"text_config": {"model_type": "gpt2"}}, "other")


def test_keys_that_are_not_known_are_a_note_unless_they_look_like_a_size() -> None:
    model = read("mixtral-8x7b", foo_a=True, mystery="x", embedding_bias_scale=1.5)
    assert model == read("mixtral-8x7b")
    (note,) = model.notes
    assert note.endswith("taken to change no size: foo_a, mystery, embedding_bias_scale")
    assert "index_n_heads: isn't known" in fault_of("deepseek-v3", index_n_heads=64)
    text = CONFIGURATIONS["llama4-scout"]["text_config"] | {"foo_a": False}
    (note,) = read("llama4-scout", text_config=text).notes
    assert note.endswith("text_config.foo_a")


def test_hybrid_attention_has_the_weights_of_both_kinds_of_layers() -> None:
    attention = read("qwen3-next-80b-a3b").attention
    assert isinstance(attention, HybridAttention)
    linear = 2048 * (2 * 2048 + 2 * 4096 + 2 * 32) + 4096 * 2048
    gated = 2048 * 256 * (2 * 16 + 2 * 2 + 16)
    assert attention.weights(2048) == (3 * linear + gated) / 4
    assert attention.attended_tokens(1 << 18) == pytest.approx((1 << 17) / 4, rel=0.01)
    assert attention.attended_tokens(1) > 3 * attention.value_heads * attention.value_size / 8192
    every = ["full_attention"] * 48
    assert "layer_types: only each 4. layer" in fault_of("qwen3-next-80b-a3b", layer_types=every)


def test_attention_of_the_architectures() -> None:
    lite = LatentAttention(16, 0, 512, 128, 64, 128)
    assert read("deepseek-v2-lite").attention == lite
    assert lite.weights(2048) == 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    qwen = read("qwen3-235b-a22b")
    assert qwen.attention == GroupedAttention(64, 4, 128, query_key_norm="head")
    assert qwen.attention_weights == 2 * 4096 * 128 * (64 + 4), "heads are wider than the model"


def test_windows_of_layers() -> None:
    oss, scout = read("gpt-oss-20b").attention, read("llama4-scout").attention
    assert isinstance(oss, GroupedAttention)
    assert (oss.window, oss.window_share, oss.window_kind) == (128, 0.5, "sliding")
    assert oss.attended_tokens(4096) == (2048 + 128 - 128 * 128 / 8192) / 2
    assert oss.attended_tokens(100) == 50
    assert isinstance(scout, GroupedAttention)
    assert (scout.window, scout.window_share, scout.window_kind) == (8192, 0.75, "chunked")
    assert scout.attended_tokens(8192) == 4096
    # Two whole chunks and a half one.
    chunked = (2 * 8192**2 + 4096**2) / 2 / 20480
    assert scout.attended_tokens(20480) == 0.75 * chunked + 0.25 * 10240


def test_windows_alternate_in_gpt_oss_if_not_given() -> None:
    attention = read("gpt-oss-20b", layer_types=None, num_hidden_layers=3).attention
    assert isinstance(attention, GroupedAttention)
    assert attention.window_share == 2 / 3


def test_embeddings_of_llama_are_tied_in_either_part() -> None:
    text = CONFIGURATIONS["llama4-scout"]["text_config"]
    assert read("llama4-scout", tie_word_embeddings=True).tied_embeddings
    assert read("llama4-scout", text_config=text | {"tie_word_embeddings": True}).tied_embeddings
    assert not read("llama4-scout").tied_embeddings


def test_sliding_windows_of_qwen_start_at_a_layer() -> None:
    window = read("qwen1.5-moe-a2.7b", use_sliding_window=True, sliding_window=1024).attention
    assert isinstance(window, GroupedAttention)
    assert (window.window, window.window_share) == (1024, 3 / 24)
    assert "sliding_window" in fault_of("qwen3-30b-a3b", use_sliding_window=True)


@pytest.mark.parametrize(
    ("changes", "moe", "dense"),
    [
        ({}, 48, 0),
        ({"mlp_only_layers": [0, 1, 47]}, 45, 3),
        ({"decoder_sparse_step": 2}, 24, 24),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 2, 3]}, 23, 25),
    ],
)
def test_layers_without_experts_of_qwen(changes: dict[str, Any], moe: int, dense: int) -> None:
    model = read("qwen3-30b-a3b", **changes)
    assert (model.layers, model.dense_layers) == (moe, dense)
    assert model.dense_ffn == (6144 if dense else 0)


def test_layers_without_experts_of_deepseek_and_llama() -> None:
    assert (read("deepseek-v3").layers, read("deepseek-v3").dense_layers) == (58, 3)
    kinds = ["dense"] * 2 + ["sparse"] * 59
    listed = read("deepseek-v3", mlp_layer_types=kinds, first_k_dense_replace=None)
    assert (listed.layers, listed.dense_layers) == (59, 2)
    assert (read("llama4-maverick").layers, read("llama4-maverick").dense_layers) == (24, 24)
    text = CONFIGURATIONS["llama4-maverick"]["text_config"]
    without_list = {key: value for key, value in text.items() if key != "moe_layers"}
    stepped = model_from_configuration(without_list, "text")
    assert (stepped.layers, stepped.dense_layers, stepped.dense_ffn) == (24, 24, 16384)


def test_groups_of_experts_limit_the_servers_of_a_token() -> None:
    assert [read(name).node_limit for name in ("deepseek-v3", "deepseek-v2")] == [4, 3]
    assert read("deepseek-v2-lite").node_limit == 0
    assert read("deepseek-v2", topk_method="greedy").node_limit == 0


@pytest.mark.parametrize(
    ("name", "key", "value", "fault"),
    [
        ("mixtral-8x7b", "num_experts_per_tok", 9, "9 experts of a token, but a layer has 8"),
        ("mixtral-8x7b", "hidden_size", -1, "a whole number of at least 1 is needed, -1 given"),
        ("deepseek-v3", "first_k_dense_replace", 70, "no layer has experts: 70 without, 61 in all"),
        ("deepseek-v3", "topk_group", 16, "16 groups of experts for a token, but n_group is 8"),
        ("glm-4.5", "topk_group", 2, "2 groups of experts for a token, but n_group is 1"),
        ("qwen3-30b-a3b", "mlp_only_layers", [0, 48, -1], "-1, 48: layers are numbered 0 to 47"),
    ],
)
def test_a_wrong_size_is_one_fault_at_its_own_key(
    name: str, key: str, value: object, fault: str
) -> None:
    outcome = read_or_fault(CONFIGURATIONS[name] | {key: value}, name)
    assert str(outcome) == f"{key}: {fault}"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_size_is_needed_and_each_key_known(name: str) -> None:
    """Without any one size, a configuration is refused, or the size isn't used."""
    whole = CONFIGURATIONS[name]
    text = whole.get("text_config", whole)

    def change(values: dict[str, Any]) -> dict[str, Any]:
        return whole | {"text_config": values} if "text_config" in whole else values

    for key in text:
        if key.startswith("num_") or key.endswith("_size"):
            rest = {other: value for other, value in text.items() if other != key}
            outcome = read_or_fault(change(rest), name)
            assert outcome == read(name) or f"{key}: is missing" in str(outcome), key
    unknown = change(text | {"mystery_size": 2})
    assert "mystery_size: isn't known" in str(read_or_fault(unknown, name))


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("value", [None, -1, 0, 3, 1.5, True, "x", [], ["x"], [7], {}, {"x": 1}])
def test_any_value_of_any_key_gives_a_model_or_its_faults(name: str, value: object) -> None:
    whole = CONFIGURATIONS[name]
    text = whole.get("text_config", whole)
    for key in text:
        changed = text | {key: value}
        document = whole | {"text_config": changed} if "text_config" in whole else changed
        outcome = read_or_fault(document, name)
        if isinstance(outcome, SpecError):
            assert all(place and message for place, message in outcome.errors)
        else:
            assert outcome.parameters >= outcome.active_parameters > 0
            assert outcome.token_flops(4096) > 0


def read_or_fault(document: dict[str, Any], name: str) -> Model | SpecError:
    try:
        return model_from_configuration(document, name)
    except SpecError as error:
        return error


@pytest.mark.parametrize(
    ("name", "changes", "fault"),
    [
        ("mixtral-8x7b", {"hidden_act": "gelu"}, "hidden_act: 'gelu' is not modelled"),
        ("qwen3-30b-a3b", {"mlp_bias": True}, "mlp_bias: True is not modelled"),
        ("qwen3-30b-a3b", {"shared_expert_intermediate_size": 8}, "8 is not modelled, only 0"),
        ("mixtral-8x7b", {"num_attention_heads": 30}, "head_dim: is missing: 30 heads"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 experts of a token"),
        ("mixtral-8x7b", {"num_local_experts": True}, "num_local_experts: a whole number"),
        ("deepseek-v3", {"first_k_dense_replace": 61}, "no layer has experts: 61 without"),
        ("mixtral-8x7b", {"pruned_heads": {"0": [1]}}, "pruned_heads: is not modelled"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias: True is not modelled"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq: 2 is not modelled"),
        ("deepseek-v3", {"kv_lora_rank": None}, "kv_lora_rank: is null"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "linear_attention: not"),
        ("gpt-oss-20b", {"layer_types": "all"}, "layer_types: a list of str is needed"),
        ("llama4-scout", {"text_config": None}, "text_config: a mapping of keys is needed"),
        ("minimax-m2", {"attn_type_list": [0] * 62}, "attn_type_list: only 1 is modelled"),
        (
            "olmoe-1b-7b",
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            "model_type: 'mamba' isn't known, nor are its architectures; known are llama4, mixtral",
        ),
        (
            "olmoe-1b-7b",
            {"model_type": ["olmoe"], "architectures": None},
            "model_type: \"['olmoe']\" isn't known",
        ),
    ],
)
def test_what_is_not_modelled_is_refused(name: str, changes: dict[str, Any], fault: str) -> None:
    assert fault in fault_of(name, **changes)


def test_groups_of_experts_that_exceed_a_tokens_have_the_key_of_the_file() -> None:
    fault = fault_of("deepseek-v3", num_experts_per_tok=3)
    assert fault == "topk_group: 4 servers of a token with 3 experts"


def test_faults_of_the_text_part_have_its_place() -> None:
    text = CONFIGURATIONS["llama4-scout"]["text_config"] | {"hidden_size": 0}
    assert "text_config.hidden_size: a whole" in fault_of("llama4-scout", text_config=text)


def test_all_faults_are_reported_once() -> None:
    fault = fault_of("qwen3-30b-a3b", hidden_size="wide", vocab_size=None, extra_size=1)
    places = [line.split(":")[0] for line in fault.splitlines()]
    assert sorted(places) == ["extra_size", "hidden_size", "vocab_size"]


Change = Callable[[Model], object]


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"tie_word_embeddings": True}, lambda model: model.tied_embeddings),
        ({"attention_bias": True}, lambda model: model.attention.qkv_bias),
        ({"num_key_value_heads": 8}, lambda model: model.attention.kv_heads),
        ({"head_dim": 64}, lambda model: model.attention.head_size),
        ({"moe_intermediate_size": 512}, lambda model: model.ffn),
    ],
)
def test_keys_change_their_size_and_the_count(changes: dict[str, Any], size: Change) -> None:
    before, after = read("qwen3-30b-a3b"), read("qwen3-30b-a3b", **changes)
    assert size(before) != size(after)
    assert before.parameters != after.parameters
