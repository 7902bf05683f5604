"""The `gating:` section of an experiment: tokens that ranks send to experts."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from pydantic import Field

from moefabric.config.data_sections import with_fields_of
from moefabric.config.model import InputPath
from moefabric.config.references import PlacementReference
from moefabric.config.section import InputError, Section, Text
from moefabric.workload.gating.generator import GatingParameters
from moefabric.workload.gating.presets import PRESETS, preset

_SHA256: Final = re.compile("[0-9a-f]{64}")
_SOURCES: Final = ("matrix", "trace", "generator", "fit")
_RECORDED_ONLY: Final = {"step_stride": 1, "first_layer": 0, "noise": 0.0, "repeat": False}


_NO_KEYS: Final = frozenset({"experts", "top_k", "tokens", "popularity", "loads", "shared"})
_STATISTICS: Final = tuple(f.name for f in fields(GatingParameters) if f.name not in _NO_KEYS)


@with_fields_of(GatingParameters, _NO_KEYS, optional="that of the generator's preset or fit")
class GatingSpec(Section):
    """Tokens that ranks send to experts: a matrix, a trace of training steps, or a generator.

    The keys from `skew` to `group_share` replace statistics of the generator.
    """

    matrix: InputPath | None = None
    """JSON file with one gating matrix for all layers and iterations."""
    trace: InputPath | None = None
    """File or folder with the gating of recorded steps: counts (a NumPy archive of a training run,
    SGLang's record of an expert distribution, CSV) or routes of tokens (JSON lines, Parquet, an
    archive with `routes`)."""
    generator: str | None = None
    """Preset of the generator: random gating with the statistics of recorded gating."""
    fit: InputPath | None = None
    """File with recorded gating, as `matrix` or `trace`: the generator's statistics are fitted to
    it, from `first_step` on."""
    sha256: Text | None = None
    """SHA-256 of the file, as `sha256sum` prints it: another file is refused."""
    first_step: int = Field(default=0, ge=0)
    """Step of the trace that the first iteration replays. After the trace's last step, iterations
    replay the steps from this one on again, and a note says so."""
    step_stride: int = Field(default=1, ge=1)
    """Steps of the trace from one iteration to the next."""
    first_layer: int = Field(default=0, ge=0)
    """Layer of the trace that the first layer replays; after its last layer, the trace repeats."""
    history: int = Field(default=0, ge=0, le=1000)
    """Number of iterations before the first one, for predictions: steps of the trace that lead to
    `first_step`, or generated ones."""
    noise: float = Field(default=0.0, ge=0.0, le=2.0)
    """Strength of the random deviation of regions, layers and iterations from a matrix or trace. A
    generator has realistic deviations instead."""
    placement: PlacementReference = "contiguous"
    """Ranks of the experts: `contiguous` in the order of their numbers, `balanced` by their tokens
    in `history` or the first iteration, `random`, `occult` by the experts that tokens have in
    common there, or `package.module:Name`."""
    repeat: bool = False
    """Whether a matrix or trace is repeated if the model has more ranks or experts. Copies of
    experts are shuffled with the experiment's seed. Of more ranks than the model's, the first ones
    are taken; more experts are refused. A generator has any number of them instead."""

    @property
    def file(self) -> Path | None:
        """The file that is read."""
        return self.matrix or self.trace or self.fit

    @property
    def is_given(self) -> bool:
        """True if there is any gating."""
        return any(getattr(self, name) is not None for name in _SOURCES)

    @property
    def is_generated(self) -> bool:
        """True if gating is random."""
        return self.generator is not None or self.fit is not None

    def parameters(
        self, fitted: GatingParameters | None, experts: int, top_k: int, tokens: int
    ) -> GatingParameters:
        """Return the generator's parameters for a model.

        Args:
            fitted: Parameters fitted to `fit`; None for a preset.
            experts: Experts of a layer.
            top_k: Experts of a token.
            tokens: Tokens of a rank in a micro-batch.

        Raises:
            ValueError: If the parameters don't fit together, or the preset is unknown.
        """
        statistics = {name: getattr(self, name) for name in _STATISTICS}
        changes = {name: value for name, value in statistics.items() if value is not None}
        base = preset(self.generator or "") if fitted is None else fitted
        return replace(base, experts=experts, top_k=top_k, tokens=tokens, **changes)

    def errors(self) -> Iterator[InputError]:
        """Yield the contradictions of the section."""
        sources = [name for name in _SOURCES if getattr(self, name) is not None]
        if not sources:
            yield "gating", "matrix, trace, generator or fit is missing"
        elif len(sources) > 1:
            conflict = f"{' and '.join(sources)} are {'both' if len(sources) == 2 else 'all'} given"
            yield "gating", f"{conflict}, one of them is needed: set the others to null"
        if self.sha256 is not None and self.file is None:
            yield "gating.sha256", "there is no file: give matrix, trace or fit"
        elif self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            yield "gating.sha256", "64 digits and letters a to f are needed, as sha256sum has them"
        if self.generator is not None and self.generator not in PRESETS:
            yield "gating.generator", f"{self.generator!r} is not one of {', '.join(PRESETS)}"
        if self.is_generated:
            for name, default in _RECORDED_ONLY.items():
                if getattr(self, name) != default:
                    yield (f"gating.{name}", "only a matrix or trace has it: leave it out")
            if self.generator is not None and self.first_step:
                yield "gating.first_step", "a preset has no steps: leave it out"
        else:
            for name in _STATISTICS:
                if getattr(self, name) is not None:
                    yield f"gating.{name}", "only a generator has it: give generator or fit"
