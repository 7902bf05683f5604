"""Reads the sizes of a model from its configuration on Hugging Face (`config.json`).

`architectures.json` has the keys of each architecture's class in Transformers:

* `class`: the model's class, by which it is told if `model_type` isn't known (`architectures`);
* `ffn`, `experts`, `dense_ffn`: names of the keys with these sizes of `Model`;
* `without_size`: keys that change no size, and `required`: the values of keys that are modelled;
* `attention_bias`: whether the class has this key, and for which matrices (`all`, `qkv`);
* `attention`, `sizes`: what the architecture says of attention, and of the model.

Its `without_size` of any configuration are keys that change neither matrices nor the tokens to
which a token attends: names, token numbers, positions, initial values, precision of weights, and
text generation. Keys that are `absent` there change sizes in ways that aren't modelled. Of other
keys that aren't read here, those that look like a size are faults, because sizes are never guessed,
and the rest are notes of the model.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final

from moefabric.core.errors import SpecError
from moefabric.workload.models.model import (
    Attention,
    GroupedAttention,
    HybridAttention,
    LatentAttention,
    Model,
    QueryKeyNorm,
)

_TABLE: Final = json.loads((files("moefabric.workload.models") / "architectures.json").read_text())
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
_LAYER_TYPES: Final = _WINDOWED | {"full_attention"}
_SIZE: Final = re.compile("size|dim|rank|heads|layers|experts|vocab|width|num_|^n_")
"""Words in the names of keys with sizes."""


class _Configuration:
    """Keys of a configuration: those that were read, and their errors.

    A wrong or missing key yields a size that makes further reading possible.
    """

    def __init__(self, values: Mapping[str, Any], section: str, architecture: str) -> None:
        self.faults: list[tuple[str, str]] = []
        self.architecture: Mapping[str, Any] = _TABLE["architectures"][architecture]
        self._values, self._section = values, section
        self._known = {*_TABLE["without_size"], *self.architecture.get("without_size", ())}
        required = {"hidden_act": ("silu", "swish"), "mlp_bias": (False,)}
        for key, allowed in (required | self.architecture.get("required", {})).items():
            value = self.given(key)
            if value is not None and value not in allowed:
                self.fault(key, f"{value!r} is not modelled, only {', '.join(map(repr, allowed))}")

    def fault(self, key: str, message: str) -> None:
        self.faults.append((f"{self._section}{key}", message))

    def has_fault(self, key: str) -> bool:
        return any(place == f"{self._section}{key}" for place, _ in self.faults)

    def contradictions(self, model: Model) -> Iterator[tuple[str, str]]:
        """Yield the contradictions between the sizes of the model, at the keys that give them."""
        names = {
            "top_k": "num_experts_per_tok",
            "node_limit": "topk_group",
            "attention.kv_heads": "num_key_value_heads",
        }
        for size, message in model.errors():
            yield f"{self._section}{names[size]}" if size in names else size, message

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

    def layer_numbers(self, key: str, layers: int) -> set[int] | None:
        """Return numbers of layers, from 0 on, if given."""
        numbers = self.entries(key, int)
        if outside := sorted(set(numbers or ()) - set(range(layers))):
            listed = ", ".join(map(str, outside))
            self.fault(key, f"{listed}: layers are numbered 0 to {layers - 1}")
        return None if numbers is None else set(numbers)

    def check(self) -> tuple[str, ...]:
        """Find keys that nothing has read, and those that aren't modelled.

        Returns:
            The keys that aren't known and don't look like a size.
        """
        for key in _TABLE["absent"]:
            if self.given(key):
                self.fault(key, "is not modelled")
        unknown = [key for key in self._values if key not in self._known]
        sizes = {key for key in unknown if _looks_like_size(key, self._values[key])}
        for key in sizes:
            self.fault(key, "isn't known: leave it out if it changes no size")
        return tuple(f"{self._section}{key}" for key in unknown if key not in sizes)


def _looks_like_size(key: str, value: object) -> bool:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return is_count and bool(_SIZE.search(key))


def model_from_configuration(document: Mapping[str, Any], name: str) -> Model:
    """Return the model that a configuration describes.

    Numbers on the wire are bfloat16, which a configuration doesn't say. Layers for multi-token
    prediction and encoders of images aren't part of the model. Its notes have the keys that aren't
    known, and the class by which it was told.

    Args:
        document: Contents of `config.json`.
        name: Name of the model.

    Raises:
        SpecError: With each key that is missing or wrong, or looks like a size and isn't known.
    """
    section, whole, text = "", str(document.get("model_type")), document.get("text_config")
    has_other_parts = whole not in ARCHITECTURES and isinstance(text, Mapping)
    if whole == "llama4" or has_other_parts:
        if not isinstance(text, Mapping):
            raise SpecError([("text_config", "a mapping of keys is needed")])
        tied = {"tie_word_embeddings": document.get("tie_word_embeddings")}
        document, section = tied | dict(text), "text_config."
    kind, notes = _architecture(document, section)
    configuration = _Configuration(document, section, kind)
    model = ARCHITECTURES[kind](configuration, name)
    if has_other_parts and whole != "llama4":
        notes += (f"the text part of {whole}, without its other parts",)
    if unknown := configuration.check():
        notes += (f"keys that aren't known and were taken to change no size: {', '.join(unknown)}",)
    if not configuration.faults:
        configuration.faults += configuration.contradictions(model)
    if configuration.faults:
        raise SpecError(list(dict.fromkeys(configuration.faults)))
    return replace(model, notes=notes)


def _architecture(document: Mapping[str, Any], section: str) -> tuple[str, tuple[str, ...]]:
    """Return the `model_type`, or that of the class in `architectures`, with a note on it.

    Raises:
        SpecError: If neither is known.
    """
    kind = str(document.get("model_type"))
    if kind in ARCHITECTURES:
        return kind, ()
    named = document.get("architectures")
    for class_name in named if isinstance(named, list) else ():
        for known, entry in _TABLE["architectures"].items():
            if entry["class"] == class_name:
                note = f"model_type {kind} was read as {known}, because of its {class_name}"
                return known, (note,)
    known = f"isn't known, nor are its architectures; known are llama4, {', '.join(ARCHITECTURES)}"
    description = f"{kind!r} {known}" if "model_type" in document else "is missing"
    fault = f"{description}: give the model's sizes instead"
    raise SpecError([(f"{section}model_type", fault)])


def _grouped(keys: _Configuration, **options: Any) -> GroupedAttention:
    heads = keys.count("num_attention_heads")
    hidden, head_dim = keys.count("hidden_size"), keys.count("head_dim", 0)
    is_known = not keys.has_fault("hidden_size") and not keys.has_fault("num_attention_heads")
    if not head_dim and is_known and hidden % heads:
        keys.fault("head_dim", f"is missing: {heads} heads don't share {hidden} evenly")
    kv_heads = keys.count("num_key_value_heads")
    if biased := keys.architecture.get("attention_bias"):
        options["qkv_bias"] = keys.flag("attention_bias")
        options["output_bias"] = options["qkv_bias"] and biased == "all"
    options |= keys.architecture.get("attention", {})
    return GroupedAttention(heads, kv_heads, head_dim or hidden // heads, **options)


def _window(kinds: Iterable[str], window: int) -> dict[str, Any]:
    """Return the window of attention whose layers are of these kinds."""
    windowed = [kind in _WINDOWED for kind in kinds]
    if not any(windowed):
        return {}
    return {"window": window, "window_share": sum(windowed) / len(windowed)}


def _model(
    keys: _Configuration,
    name: str,
    attention: Attention | None = None,
    moe_layers: int | None = None,
    **sizes: Any,
) -> Model:
    layers = keys.count("num_hidden_layers")
    moe = layers if moe_layers is None else moe_layers
    if not moe:
        keys.fault("num_hidden_layers", "no layer has experts")
    dense_ffn = keys.architecture.get("dense_ffn", "intermediate_size")
    return Model(
        name=name,
        layers=moe,
        hidden=keys.count("hidden_size"),
        ffn=keys.count(keys.architecture["ffn"]),
        experts=keys.count(keys.architecture["experts"]),
        top_k=keys.count("num_experts_per_tok"),
        attention=attention or _grouped(keys),
        dense_layers=layers - moe,
        dense_ffn=keys.count(dense_ffn) if moe < layers else 0,
        vocabulary=keys.count("vocab_size"),
        tied_embeddings=keys.flag("tie_word_embeddings"),
        **keys.architecture.get("sizes", {}),
        **sizes,
    )


def _mixtral(keys: _Configuration, name: str) -> Model:
    return _model(keys, name, _grouped(keys, window=keys.count("sliding_window", 0)))


def _qwen_moe_layers(keys: _Configuration) -> int:
    """Return the number of layers that have experts."""
    layers, step = keys.count("num_hidden_layers"), keys.count("decoder_sparse_step", 1)
    dense = keys.layer_numbers("mlp_only_layers", layers) or set()
    return sum((number + 1) % step == 0 and number not in dense for number in range(layers))


def _qwen_window(keys: _Configuration, first: int) -> dict[str, Any]:
    """Return the window of layers from `first` on."""
    layers = keys.count("num_hidden_layers")
    kinds = keys.layer_types(layers)
    if not keys.flag("use_sliding_window"):
        return {}
    default = ["full_attention"] * min(first, layers) + ["sliding_attention"] * (layers - first)
    return _window(kinds or default, keys.count("sliding_window"))


def _qwen2_moe(keys: _Configuration, name: str) -> Model:
    window = _qwen_window(keys, keys.count("max_window_layers", 0, least=0))
    attention = _grouped(keys, qkv_bias=keys.flag("qkv_bias", default=True), **window)
    shared_ffn = keys.count("shared_expert_intermediate_size", least=0)
    return _model(keys, name, attention, _qwen_moe_layers(keys), shared_ffn=shared_ffn)


def _qwen3_moe(keys: _Configuration, name: str) -> Model:
    attention = _grouped(keys, **_qwen_window(keys, 0))
    return _model(keys, name, attention, _qwen_moe_layers(keys))


def _qwen3_next(keys: _Configuration, name: str) -> Model:
    """Return Qwen3-Next: each fourth layer has attention with a gate, the others a delta rule."""
    layers, period = keys.count("num_hidden_layers"), keys.count("full_attention_interval", 4)
    default = ["linear_attention" if (n + 1) % period else "full_attention" for n in range(layers)]
    if (keys.entries("layer_types", str, layers) or default) != default:
        keys.fault("layer_types", f"only each {period}. layer may have full_attention")
    attention = HybridAttention(
        _grouped(keys, output_gate=True),
        period,
        keys.count("linear_num_key_heads"),
        keys.count("linear_key_head_dim"),
        keys.count("linear_num_value_heads"),
        keys.count("linear_value_head_dim"),
        keys.count("linear_conv_kernel_dim"),
    )
    shared_ffn = keys.count("shared_expert_intermediate_size", least=0)
    return _model(keys, name, attention, _qwen_moe_layers(keys), shared_ffn=shared_ffn)


def _glm4_moe(keys: _Configuration, name: str) -> Model:
    norm: QueryKeyNorm = "head" if keys.flag("use_qk_norm") else "none"
    return _with_shared_experts(keys, name, _grouped(keys, query_key_norm=norm))


def _minimax_m2(keys: _Configuration, name: str) -> Model:
    kinds = keys.entries("attn_type_list", int, keys.count("num_hidden_layers"))
    if kinds and set(kinds) != {1}:
        keys.fault("attn_type_list", "only 1 is modelled: attention over all earlier tokens")
    norm: QueryKeyNorm = "all" if keys.flag("use_qk_norm") else "none"
    router_bias = keys.flag("use_routing_bias")
    return _model(keys, name, _grouped(keys, query_key_norm=norm), router_bias=router_bias)


def _deepseek(keys: _Configuration, name: str) -> Model:
    """Return DeepSeek-V2, -V3 or -R1, or Kimi-K2."""
    attention = LatentAttention(
        keys.count("num_attention_heads"),
        keys.count_or_null("q_lora_rank"),
        keys.count("kv_lora_rank"),
        keys.count("qk_nope_head_dim"),
        keys.count("qk_rope_head_dim"),
        keys.count("v_head_dim"),
    )
    return _with_shared_experts(keys, name, attention)


def _with_shared_experts(keys: _Configuration, name: str, attention: Attention) -> Model:
    """Return a model with the keys of DeepSeek for groups of experts and shared experts."""
    groups, chosen = keys.count("n_group", 1), keys.count("topk_group", 1)
    if chosen > groups:
        keys.fault("topk_group", f"{chosen} groups of experts for a token, but n_group is {groups}")
    limited = groups > 1 and keys.given("topk_method") != "greedy"
    kinds = keys.entries("mlp_layer_types", str, layers := keys.count("num_hidden_layers"))
    listed = None if kinds is None else kinds.count("dense")
    dense = keys.count("first_k_dense_replace", listed, least=0)
    if dense >= layers:
        first = "first_k_dense_replace"
        key = "mlp_layer_types" if keys.given(first) is None else first
        keys.fault(key, f"no layer has experts: {dense} without, {layers} in all")
        dense = 0
    shared_ffn = keys.count_or_null("n_shared_experts") * keys.count("moe_intermediate_size")
    sizes = {"shared_ffn": shared_ffn, "node_limit": chosen if limited else 0}
    return _model(keys, name, attention, max(0, layers - dense), **sizes)


def _llama4(keys: _Configuration, name: str) -> Model:
    """Return the text part of Llama 4; its norms of queries and keys have no weights."""
    layers, step = keys.count("num_hidden_layers"), keys.count("interleave_moe_layer_step")
    numbers = keys.layer_numbers("moe_layers", layers)
    moe_layers = layers // step if numbers is None else len(numbers)
    interval = keys.count("no_rope_layer_interval", 4)
    default_rotary = [(number + 1) % interval != 0 for number in range(layers)]
    rotary = keys.entries("no_rope_layers", int) or default_rotary
    default = ["chunked_attention" if flag else "full_attention" for flag in rotary]
    if len(default) != layers:
        keys.fault("no_rope_layers", f"{layers} layers need as many entries, {len(default)} given")
    kinds, chunk = keys.layer_types(layers) or default, keys.count_or_null("attention_chunk_size")
    attention = _grouped(keys, **(_window(kinds, chunk) if chunk else {}))
    return _model(keys, name, attention, moe_layers, shared_ffn=keys.count("intermediate_size"))


def _gpt_oss(keys: _Configuration, name: str) -> Model:
    layers = keys.count("num_hidden_layers")
    default = ["full_attention" if n % 2 else "sliding_attention" for n in range(layers)]
    kinds = keys.layer_types(layers) or default
    return _model(keys, name, _grouped(keys, **_window(kinds, keys.count("sliding_window"))))


ARCHITECTURES: Final[Mapping[str, Callable[[_Configuration, str], Model]]] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "glm4_moe": _glm4_moe,
    "minimax_m2": _minimax_m2,
    "qwen3_next": _qwen3_next,
    "olmoe": _model,
    "llama4_text": _llama4,
    "gpt_oss": _gpt_oss,
    "granitemoe": _model,
}
"""Readers by `model_type`."""
