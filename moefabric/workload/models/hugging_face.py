"""Reads the sizes of a model from its configuration on Hugging Face (`config.json`).

Each architecture has a function that reads the keys of its class in Transformers. A key that is
neither read there nor known to change no size is a fault: sizes are never guessed.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from moefabric.core.errors import SpecError
from moefabric.workload.models.attention import GroupedAttention, LatentAttention
from moefabric.workload.models.model import Model

_WITHOUT_SIZE: Final = (
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "architectures",
    "attention_dropout", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size",
    "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "id2label", "initializer_range", "is_decoder", "label2id",
    "length_penalty", "max_length", "max_position_embeddings", "min_length", "model_type",
    "name_or_path", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "quantization",
    "quantization_config", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
    "router_aux_loss_coef", "sep_token_id", "suppress_tokens", "task_specific_params",
    "temperature", "tf_legacy_loss", "tokenizer_class", "top_k", "top_p", "torch_dtype",
    "torchscript", "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache",
)  # fmt: skip
"""Keys of any configuration that change neither matrices nor the tokens to which a token attends:
names, token numbers, positions, initial values, precision of weights, and text generation."""

_ABSENT: Final = frozenset(
    {"add_cross_attention", "cross_attention_hidden_size", "is_encoder_decoder", "pruned_heads"}
    | {"tie_encoder_decoder"}
)
"""Keys of any configuration that change sizes in ways that aren't modelled."""

_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
_LAYER_TYPES: Final = _WINDOWED | {"full_attention"}


class _Configuration:
    """Keys of a configuration: those that were read, and their errors.

    A wrong or missing key yields a size that makes further reading possible.
    """

    def __init__(self, values: Mapping[str, Any], section: str = "") -> None:
        self.faults: list[tuple[str, str]] = []
        self.name = ""
        self._values, self._section = values, section
        self._known = set(_WITHOUT_SIZE)

    def fault(self, key: str, message: str) -> None:
        self.faults.append((f"{self._section}{key}", message))

    def ignore(self, *keys: str) -> None:
        """Mark keys of an architecture that change no size."""
        self._known |= set(keys)

    def given(self, key: str) -> Any:
        """Return the value of a key; None if it is null or missing."""
        self._known.add(key)
        return self._values.get(key)

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number. Without a default, the key must be there."""
        value = self.given(key)
        if value is None and default is not None:
            return default
        if value is None:
            self.fault(key, "is null" if key in self._values else "is missing")
        elif isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.fault(key, f"a whole number of at least {least} is needed, {value!r} given")
        else:
            return value
        return max(least, 1)

    def count_or_null(self, key: str) -> int:
        """Return a whole number, or 0 if it is null; the key must be there."""
        null = key in self._values and self._values[key] is None
        return self.count(key, 0 if null else None)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value = self.given(key)
        if value is not None and not isinstance(value, bool):
            self.fault(key, f"true or false is needed, {value!r} given")
        return bool(default if value is None else value)

    def require(self, key: str, *allowed: Any) -> None:
        """Check that a key, if given, has a value that is modelled."""
        value = self.given(key)
        if value is not None and value not in allowed:
            self.fault(key, f"{value!r} is not modelled, only {', '.join(map(repr, allowed))}")

    def entries(self, key: str, kind: type, size: int | None = None) -> list[Any] | None:
        """Return a list of values of one kind; None if it is null, missing or wrong."""
        value = self.given(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(entry) is kind for entry in value):
            self.fault(key, f"a list of {kind.__name__} is needed")
        elif size is not None and len(value) != size:
            self.fault(key, f"{size} layers need as many entries, {len(value)} given")
        else:
            return value
        return None

    def layer_types(self, layers: int) -> list[str] | None:
        """Return the kind of attention of each layer, if given."""
        kinds = self.entries("layer_types", str, layers)
        if unknown := sorted(set(kinds or ()) - _LAYER_TYPES):
            self.fault("layer_types", f"{', '.join(unknown)}: not modelled")
        return kinds

    def check(self) -> None:
        """Find keys that nothing has read, and those that aren't modelled."""
        for key in sorted(_ABSENT & self._values.keys()):
            self._known.add(key)
            if self._values[key]:
                self.fault(key, "is not modelled")
        for key in self._values:
            if key not in self._known:
                self.fault(key, "isn't known: leave it out if it changes no size")


def model_from_configuration(document: Mapping[str, Any], name: str) -> Model:
    """Return the model that a configuration describes.

    Numbers on the wire are bfloat16, which a configuration doesn't say. Layers for multi-token
    prediction and encoders of images aren't part of the model.

    Args:
        document: Contents of `config.json`.
        name: Name of the model.

    Raises:
        SpecError: With each key that is missing, wrong or not known.
    """
    section = ""
    if document.get("model_type") == "llama4":
        text = document.get("text_config")
        if not isinstance(text, Mapping):
            raise SpecError([("text_config", "a mapping of keys is needed")])
        tied = {"tie_word_embeddings": document.get("tie_word_embeddings")}
        document, section = tied | dict(text), "text_config."
    kind = str(document.get("model_type"))
    if kind not in ARCHITECTURES:
        known = f"isn't known; known are {', '.join(ARCHITECTURES)}"
        description = f"{kind!r} {known}" if "model_type" in document else "is missing"
        raise SpecError(
            [(f"{section}model_type", f"{description}: give the model's sizes instead")]
        )
    configuration = _Configuration(document, section)
    configuration.name = name
    model = ARCHITECTURES[kind](configuration)
    configuration.check()
    if not configuration.faults:
        configuration.faults += model.errors()
    if configuration.faults:
        raise SpecError(list(dict.fromkeys(configuration.faults)))
    return model


def _grouped(keys: _Configuration, **options: Any) -> GroupedAttention:
    heads = keys.count("num_attention_heads")
    hidden, given = keys.count("hidden_size"), keys.count("head_dim", 0)
    if not given and hidden % heads:
        keys.fault("head_dim", f"is missing: {heads} heads don't share {hidden} evenly")
    kv_heads = keys.count("num_key_value_heads")
    return GroupedAttention(heads, kv_heads, given or hidden // heads, **options)


def _biases(keys: _Configuration) -> dict[str, bool]:
    bias = keys.flag("attention_bias")
    return {"qkv_bias": bias, "output_bias": bias}


def _window(kinds: Iterable[str], window: int) -> dict[str, Any]:
    """Return the window of attention whose layers are of these kinds."""
    windowed = [kind in _WINDOWED for kind in kinds]
    if not any(windowed):
        return {}
    return {"window": window, "window_share": sum(windowed) / len(windowed)}


def _model(
    keys: _Configuration,
    attention: GroupedAttention | LatentAttention,
    ffn: str,
    experts: str,
    moe_layers: int | None = None,
    dense_ffn: str = "intermediate_size",
    **options: Any,
) -> Model:
    """Return a model. `ffn`, `experts` and `dense_ffn` are the names of these keys."""
    keys.require("hidden_act", "silu", "swish")
    keys.require("mlp_bias", False)
    layers = keys.count("num_hidden_layers")
    moe = layers if moe_layers is None else moe_layers
    if not moe:
        keys.fault("num_hidden_layers", "no layer has experts")
    return Model(
        name=keys.name,
        layers=moe,
        hidden=keys.count("hidden_size"),
        ffn=keys.count(ffn),
        experts=keys.count(experts),
        top_k=keys.count("num_experts_per_tok"),
        attention=attention,
        dense_layers=layers - moe,
        dense_ffn=keys.count(dense_ffn) if moe < layers else 0,
        vocabulary=keys.count("vocab_size"),
        tied_embeddings=keys.flag("tie_word_embeddings"),
        **options,
    )


def _mixtral(keys: _Configuration) -> Model:
    keys.ignore("router_jitter_noise")
    attention = _grouped(keys, window=keys.count("sliding_window", 0))
    return _model(keys, attention, "intermediate_size", "num_local_experts")


def _qwen_moe_layers(keys: _Configuration) -> int:
    """Return the number of layers that have experts."""
    keys.ignore("intermediate_size", "norm_topk_prob")
    layers, step = keys.count("num_hidden_layers"), keys.count("decoder_sparse_step", 1)
    dense = set(keys.entries("mlp_only_layers", int) or ())
    return sum((number + 1) % step == 0 and number not in dense for number in range(layers))


def _qwen_window(keys: _Configuration, first: int) -> dict[str, Any]:
    """Return the window of layers from `first` on."""
    keys.ignore("sliding_window")
    layers = keys.count("num_hidden_layers")
    kinds = keys.layer_types(layers)
    if not keys.flag("use_sliding_window"):
        return {}
    default = ["full_attention"] * min(first, layers) + ["sliding_attention"] * (layers - first)
    return _window(kinds or default, keys.count("sliding_window"))


def _qwen2_moe(keys: _Configuration) -> Model:
    bias = keys.flag("qkv_bias", default=True)
    window = _qwen_window(keys, keys.count("max_window_layers", 0, least=0))
    return _model(
        keys,
        _grouped(keys, qkv_bias=bias, **window),
        "moe_intermediate_size",
        "num_experts",
        _qwen_moe_layers(keys),
        shared_ffn=keys.count("shared_expert_intermediate_size", least=0),
        shared_gate=True,
    )


def _qwen3_moe(keys: _Configuration) -> Model:
    keys.ignore("max_window_layers")
    keys.require("qkv_bias", False)
    keys.require("shared_expert_intermediate_size", 0)
    keys.require("use_qk_norm", True)
    options = _biases(keys) | _qwen_window(keys, 0)
    attention = _grouped(keys, query_key_norm="head", **options)
    moe_layers = _qwen_moe_layers(keys)
    return _model(keys, attention, "moe_intermediate_size", "num_experts", moe_layers)


def _deepseek(keys: _Configuration) -> Model:
    """Return DeepSeek-V2, -V3 or -R1."""
    keys.ignore("aux_loss_alpha", "ep_size", "head_dim", "intermediate_size", "norm_topk_prob")
    keys.ignore("num_key_value_heads", "num_nextn_predict_layers", "qk_head_dim", "rope_interleave")
    keys.ignore("routed_scaling_factor", "scoring_func", "seq_aux")
    keys.require("attention_bias", False)
    keys.require("moe_layer_freq", 1)
    keys.require("topk_method", "greedy", "group_limited_greedy", "noaux_tc")
    attention = LatentAttention(
        keys.count("num_attention_heads"),
        keys.count_or_null("q_lora_rank"),
        keys.count("kv_lora_rank"),
        keys.count("qk_nope_head_dim"),
        keys.count("qk_rope_head_dim"),
        keys.count("v_head_dim"),
    )
    groups, chosen = keys.count("n_group", 1), keys.count("topk_group", 1)
    limited = groups > 1 and keys.given("topk_method") != "greedy"
    kinds = keys.entries("mlp_layer_types", str, layers := keys.count("num_hidden_layers"))
    listed = None if kinds is None else kinds.count("dense")
    dense = keys.count("first_k_dense_replace", listed, least=0)
    return _model(
        keys,
        attention,
        "moe_intermediate_size",
        "n_routed_experts",
        max(0, layers - dense),
        shared_ffn=keys.count_or_null("n_shared_experts") * keys.count("moe_intermediate_size"),
        router_bias=keys.given("model_type") == "deepseek_v3",
        node_limit=chosen if limited else 0,
    )


def _olmoe(keys: _Configuration) -> Model:
    keys.ignore("clip_qkv", "norm_topk_prob")
    attention = _grouped(keys, query_key_norm="all", **_biases(keys))
    return _model(keys, attention, "intermediate_size", "num_experts")


def _llama4(keys: _Configuration) -> Model:
    """Return the text part of Llama 4; its norms of queries and keys have no weights."""
    keys.ignore("attn_scale", "attn_temperature_tuning", "floor_scale", "for_llm_compression")
    keys.ignore("intermediate_size_mlp", "router_jitter_noise", "use_qk_norm")
    layers, step = keys.count("num_hidden_layers"), keys.count("interleave_moe_layer_step")
    numbers = keys.entries("moe_layers", int)
    moe_layers = layers // step if numbers is None else len(set(numbers) & set(range(layers)))
    interval = keys.count("no_rope_layer_interval", 4)
    rotary = keys.entries("no_rope_layers", int) or [
        int((number + 1) % interval != 0) for number in range(layers)
    ]
    default = ["chunked_attention" if flag else "full_attention" for flag in rotary]
    if len(default) != layers:
        keys.fault("no_rope_layers", f"{layers} layers need as many entries, {len(default)} given")
    kinds, chunk = keys.layer_types(layers) or default, keys.count_or_null("attention_chunk_size")
    options = _biases(keys) | (_window(kinds, chunk) if chunk else {})
    return _model(
        keys,
        _grouped(keys, window_kind="chunked", **options),
        "intermediate_size",
        "num_local_experts",
        moe_layers,
        "intermediate_size_mlp",
        shared_ffn=keys.count("intermediate_size"),
    )


def _gpt_oss(keys: _Configuration) -> Model:
    keys.ignore("experts_per_token", "initial_context_length", "swiglu_alpha", "swiglu_limit")
    layers = keys.count("num_hidden_layers")
    kinds = keys.layer_types(layers) or [
        "full_attention" if number % 2 else "sliding_attention" for number in range(layers)
    ]
    options = _biases(keys) | _window(kinds, keys.count("sliding_window"))
    attention = _grouped(keys, sinks=True, **options)
    biases: dict[str, Any] = {"expert_bias": True, "router_bias": True}
    return _model(keys, attention, "intermediate_size", "num_local_experts", **biases)


def _granite(keys: _Configuration) -> Model:
    keys.ignore("attention_multiplier", "embedding_multiplier", "logits_scaling")
    keys.ignore("residual_multiplier")
    attention = _grouped(keys, **_biases(keys))
    return _model(keys, attention, "intermediate_size", "num_local_experts")


ARCHITECTURES: Final[Mapping[str, Callable[[_Configuration], Model]]] = MappingProxyType(
    {
        "mixtral": _mixtral,
        "qwen2_moe": _qwen2_moe,
        "qwen3_moe": _qwen3_moe,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "olmoe": _olmoe,
        "llama4_text": _llama4,
        "gpt_oss": _gpt_oss,
        "granitemoe": _granite,
    }
)
"""Readers by `model_type`."""
