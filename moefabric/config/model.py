"""Models as users write them: a preset's name, a configuration of Hugging Face, or sizes."""

from dataclasses import MISSING, fields, replace
from functools import cache
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Required

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag

from moefabric.config.data_sections import AsSection, with_fields_of
from moefabric.config.file_kinds import read_kind, refuse_other_kind
from moefabric.config.input_file import did_you_mean, read_json, resolved
from moefabric.config.section import Section, Text
from moefabric.config.validation import validate
from moefabric.core.errors import SpecError
from moefabric.workload.models.hugging_face import model_from_configuration
from moefabric.workload.models.model import (
    GroupedAttention,
    HybridAttention,
    LatentAttention,
    Model,
)

_PRESETS: Final = files("moefabric.config.models")

InputPath = Annotated[Path, Field(strict=False)]
"""Path of a file. Relative paths start at the experiment's file."""
ModelName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9.-]{0,62}$")]
"""Lower-case letters, digits, dots and dashes."""


def configuration_file(path: Path) -> Path:
    """Return the configuration that a path names: the file, or `config.json` of a folder."""
    return path / "config.json" if path.is_dir() else path


def _attention_kind(value: Any) -> str | None:
    """Return the kind of attention, given as a mapping or as a section."""
    kind = value.get("kind", "grouped") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if kind in ("grouped", "latent", "hybrid") else None


AttentionSpec = Annotated[
    Annotated[GroupedAttention, AsSection(), Tag("grouped")]
    | Annotated[LatentAttention, AsSection(kind=Required[Literal["latent"]]), Tag("latent")]
    | Annotated[HybridAttention, AsSection(kind=Required[Literal["hybrid"]]), Tag("hybrid")],
    Discriminator(
        _attention_kind,
        custom_error_type="attention_kind",
        custom_error_message="a mapping is needed whose kind is 'grouped', 'latent' or 'hybrid'",
    ),
]
"""Attention of one of the kinds."""


@with_fields_of(
    Model,
    {"name", "notes"},
    optional="that of the preset or configuration",
    attention=AttentionSpec,
)
class ModelSpec(Section):
    """Model that is trained: a preset, a configuration, or sizes.

    With a preset or a configuration, each size given here replaces its own. Without them, what is
    left out is 0, false or bf16.
    """

    name: ModelName | None = None
    """Name of a preset (`moefabric model list`). With `config` or sizes, the model's own name."""
    config: Annotated[InputPath, AfterValidator(configuration_file)] | None = None
    """`config.json` of a model on Hugging Face, or its folder."""
    source: Text | None = None
    """Where sizes come from."""

    def build(self) -> Model:
        """Return the model.

        Raises:
            SpecError: With the keys of this section that are wrong or missing.
        """
        sizes = {key: value for key in _SIZES if (value := getattr(self, key)) is not None}
        base = self._base()
        if base is None:
            self._check_complete(sizes)
            model = Model(name=self.name or "model", **sizes)
        else:
            whole = {"whole_layers": base.layers} if sizes.get("layers", inf) < base.layers else {}
            model = replace(base, name=self.name or base.name, **whole | sizes)
            if model.layers > base.layers:
                more = (
                    f"model.layers: {model.layers} are more than the {base.layers} of {base.name}"
                )
                model = replace(model, notes=(*base.notes, more))
        if errors := list(model.errors()):
            raise SpecError(errors)
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
            errors = [(key, "is missing") for key in _REQUIRED if key not in sizes]
        elif self.name is None:
            errors = [("name", "a preset's name, config or sizes are needed")]
        else:
            known = f"none of the presets {', '.join(presets())}"
            message = f"{self.name!r} is {known}: give config or sizes"
            errors = [("name", message + did_you_mean(self.name, presets()))]
        if errors:
            raise SpecError(errors)


_SIZES: Final = tuple(field.name for field in fields(Model) if field.name not in ("name", "notes"))
_REQUIRED: Final = tuple(
    field.name for field in fields(Model) if field.default is MISSING and field.name != "name"
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
        raise SpecError(
            [(name, f"is none of {', '.join(presets())}{did_you_mean(name, presets())}")]
        )
    return _read_model(Path(str(_PRESETS / f"{name}.yaml")))


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
        errors = [(f"{path}: {place}", message) for place, message in error.errors]
        raise SpecError(errors) from error


def load_model(reference: str | Path) -> Model:
    """Return a model by a preset's name, or by the path of a configuration or a YAML file.

    Args:
        reference: The name, a path that ends in `.json`, that of a folder with a `config.json`, or
            one that ends in `.yaml` and has the keys of `model:` in an experiment.

    Raises:
        SpecError: If there is no such model, or with all errors of the file.
    """
    path, reference = Path(reference), str(reference)
    if path.is_dir() and reference not in presets():
        path = configuration_file(path)
    if path.suffix == ".json":
        refuse_other_kind(path, "model")
        return read_configuration(path)
    if path.suffix in (".yaml", ".yml"):
        return _read_model(path)
    return preset(reference)


def _read_model(path: Path) -> Model:
    document = read_kind(path, "model")
    section = validate(ModelSpec, resolved(document, ["config"], path.parent), path)
    try:
        model = section.build()
    except SpecError as error:
        errors = [(f"{path}: {place}", message) for place, message in error.errors]
        raise SpecError(errors) from error
    return model if section.name or section.config else replace(model, name=path.stem)
