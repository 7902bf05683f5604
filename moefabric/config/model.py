"""Models as users write them: a preset's name, a configuration of Hugging Face, or sizes."""

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from moefabric.config.input_file import read_json, read_yaml
from moefabric.config.section import Section, Text
from moefabric.config.validation import validate
from moefabric.core.errors import SpecError
from moefabric.workload import attention
from moefabric.workload.hugging_face import model_from_configuration
from moefabric.workload.model import Model, WireType

_PRESETS: Final = files("moefabric.config.models")

InputPath = Annotated[Path, Field(strict=False)]
"""Path of a file. Relative paths start at the experiment's file."""
ModelName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9.-]{0,62}$")]
"""Lower-case letters, digits, dots and dashes."""
Size = Annotated[int, Field(ge=1, le=1 << 24)]
"""A size of at least one."""
OptionalSize = Annotated[int, Field(ge=0, le=1 << 24)]
"""A size; 0 without such a part."""


def _sizes(attention_section: Section) -> dict[str, Any]:
    """Return the sizes of a section; a wrong or missing one raises `UnknownError`."""
    keys = type(attention_section).model_fields
    return {key: getattr(attention_section, key) for key in keys if key != "kind"}


class GroupedAttentionSpec(Section):
    """Multi-head attention whose heads share keys and values in groups."""

    kind: Literal["grouped"] = "grouped"
    """Kind of attention."""
    heads: Size
    """Heads of queries."""
    kv_heads: Size
    """Heads of keys and of values."""
    head_size: Size
    """Size of a head."""
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias."""
    output_bias: bool = False
    """Whether the output has a bias."""
    query_key_norm: attention.QueryKeyNorm = "none"
    """Norms of queries and keys: `none`, one for a `head`, or one over `all` heads."""
    sinks: bool = False
    """Whether each head has a learnt score to which it may attend instead of a token."""
    window: OptionalSize = 0
    """Tokens to which windowed layers attend at most; 0 without windowed layers."""
    window_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Part of the layers that are windowed."""
    window_kind: Literal["sliding", "chunked"] = "sliding"
    """`sliding` is the last tokens; `chunked` begins anew after each window."""

    def build(self) -> attention.GroupedAttention:
        """Return the attention that this section describes."""
        return attention.GroupedAttention(**_sizes(self))


class LatentAttentionSpec(Section):
    """Multi-head latent attention: queries, keys and values of low rank (DeepSeek-V2)."""

    kind: Literal["latent"]
    """Kind of attention."""
    heads: Size
    """Heads."""
    query_rank: OptionalSize
    """Rank of the queries' matrix; 0 for a matrix of full rank."""
    kv_rank: Size
    """Rank of the keys' and values' matrix."""
    plain_size: Size
    """Size of a head's queries and keys without position."""
    rotary_size: Size
    """Size of a head's queries and keys with position."""
    value_size: Size
    """Size of a head's values."""

    def build(self) -> attention.LatentAttention:
        """Return the attention that this section describes."""
        return attention.LatentAttention(**_sizes(self))


def _attention_kind(value: Any) -> str | None:
    """Return the kind of attention, given as a mapping or as a section."""
    kind = value.get("kind", "grouped") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if kind in ("grouped", "latent") else None


AttentionSpec = Annotated[
    Annotated[GroupedAttentionSpec, Tag("grouped")] | Annotated[LatentAttentionSpec, Tag("latent")],
    Discriminator(
        _attention_kind,
        custom_error_type="attention_kind",
        custom_error_message="a mapping is needed whose kind is 'grouped' or 'latent'",
    ),
]
"""Attention of one of the kinds."""


class ModelSpec(Section):
    """Model that is trained: a preset, a configuration, or sizes.

    With a preset or a configuration, each size given here replaces its own.
    """

    name: ModelName | None = None
    """Name of a preset (`moefabric model list`). With `config` or sizes, the model's own name."""
    config: InputPath | None = None
    """`config.json` of a model on Hugging Face."""
    source: Text | None = None
    """Where sizes come from."""
    layers: int | None = Field(default=None, ge=1, le=1000)
    """Number of MoE layers that are replayed, without head and layers that have no experts. With
    several stages, each has whole layers, the first ones one more if they can't share evenly.
    Default: the model's."""
    hidden: Size | None = None
    """Hidden size."""
    ffn: Size | None = None
    """Inner size of one expert, which has three matrices."""
    experts: int | None = Field(default=None, ge=1, le=4096)
    """Number of routed experts of a layer. Default: the model's."""
    top_k: Size | None = None
    """Routed experts of a token."""
    attention: AttentionSpec | None = None
    """Sizes of attention."""
    shared_ffn: OptionalSize | None = None
    """Inner size of the shared experts together. Default: 0, none."""
    shared_gate: bool | None = None
    """Whether a gate weighs what shared experts yield. Default: false."""
    dense_layers: OptionalSize | None = None
    """Layers that have a dense block instead of experts. Default: 0."""
    dense_ffn: OptionalSize | None = None
    """Inner size of that block."""
    vocabulary: OptionalSize | None = None
    """Tokens that the head tells apart. Default: 0, no head."""
    tied_embeddings: bool | None = None
    """Whether the head is the embeddings' matrix. Default: false."""
    expert_bias: bool | None = None
    """Whether the matrices of routed experts have a bias. Default: false."""
    router_bias: bool | None = None
    """Whether the router has a bias for each expert. Default: false."""
    dispatch_type: WireType | None = None
    """Form of numbers on their way to experts, and of their gradients. Default: bf16."""
    combine_type: WireType | None = None
    """Form of numbers on their way back from experts. Default: bf16."""
    node_limit: OptionalSize | None = None
    """The most servers to which a token goes, once to each. Default: 0, no limit: a token goes to
    each of its experts."""

    def build(self) -> Model:
        """Return the model.

        Raises:
            SpecError: With the keys of this section that are wrong or missing.
        """
        sizes = {key: value for key in _SIZES if (value := getattr(self, key)) is not None}
        if self.attention is not None:
            sizes["attention"] = self.attention.build()
        base = self._base()
        if base is None:
            self._check_complete(sizes)
            model = Model(name=self.name or "model", **sizes)
        else:
            model = replace(base, name=self.name or base.name, **sizes)
        if faults := list(model.faults()):
            raise SpecError(faults)
        return model

    def _base(self) -> Model | None:
        """Return the model whose sizes this section changes."""
        is_preset = self.name in presets()
        if self.config is None:
            return preset(self.name) if self.name and is_preset else None
        if is_preset:
            message = f"{self.name} is a preset, and config is given: leave one of them out"
            raise SpecError([("name", message)])
        try:
            return read_configuration(self.config)
        except SpecError as error:
            raise SpecError([("config", line) for line in str(error).splitlines()]) from error

    def _check_complete(self, sizes: dict[str, Any]) -> None:
        if any(key in sizes for key in _REQUIRED if key not in ("layers", "experts")):
            faults = [(key, "is missing") for key in _REQUIRED if key not in sizes]
        elif self.name is None:
            faults = [("name", "a preset's name, config or sizes are needed")]
        else:
            known = f"none of the presets {', '.join(presets())}"
            message = f"{self.name!r} is {known}: give config or sizes"
            faults = [("name", message)]
        if faults:
            raise SpecError(faults)


_REQUIRED: Final = ("layers", "hidden", "ffn", "experts", "top_k", "attention")
"""Sizes that have no default."""
_SIZES: Final = tuple(
    key for key in ModelSpec.model_fields if key not in {"name", "config", "source"}
)


@cache
def presets() -> tuple[str, ...]:
    """Return the names of the models that ship."""
    suffix = ".yaml"
    names = (entry.name for entry in _PRESETS.iterdir() if entry.name.endswith(suffix))
    return tuple(sorted(name.removesuffix(suffix) for name in names))


@cache
def preset(name: str) -> Model:
    """Return a model that ships.

    Raises:
        SpecError: If there is no such preset.
    """
    if name not in presets():
        raise SpecError([(name, f"is none of {', '.join(presets())}")])
    return _read_model(_preset_path(name))


def preset_source(name: str) -> str:
    """Return where the sizes of a preset come from."""
    return validate(ModelSpec, read_yaml(_preset_path(name))).source or ""


def read_configuration(path: Path) -> Model:
    """Return the model of a `config.json`, with the name of its folder.

    Raises:
        SpecError: If the file can't be read, or with each key that is wrong, missing or not known.
    """
    document = read_json(path)
    if not isinstance(document, dict):
        raise SpecError([(str(path), "a mapping of keys is needed")])
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    try:
        return model_from_configuration(document, name.lower())
    except SpecError as error:
        faults = [(f"{path}: {place}", message) for place, message in error.faults]
        raise SpecError(faults) from error


def load_model(reference: str) -> Model:
    """Return a model by a preset's name, or by the path of a configuration or a YAML file.

    Args:
        reference: The name, a path that ends in `.json`, or one that ends in `.yaml` and has the
            keys of `model:` in an experiment.

    Raises:
        SpecError: If there is no such model, or with all faults of the file.
    """
    path = Path(reference)
    if path.suffix == ".json":
        return read_configuration(path)
    if path.suffix in (".yaml", ".yml"):
        return _read_model(path)
    return preset(reference)


def _preset_path(name: str) -> Path:
    return Path(str(_PRESETS / f"{name}.yaml"))


def _read_model(path: Path) -> Model:
    document = read_yaml(path)
    section = validate(ModelSpec, resolve_config(document, path.parent), path)
    try:
        model = section.build()
    except SpecError as error:
        faults = [(f"{path}: {place}", message) for place, message in error.faults]
        raise SpecError(faults) from error
    return model if section.name or section.config else replace(model, name=path.stem)


def resolve_config(model: Any, folder: Path) -> Any:
    """Return the section of a model whose configuration's path starts at `folder`."""
    if isinstance(model, dict) and isinstance(config := model.get("config"), str):
        return model | {"config": str(folder / config)}
    return model
