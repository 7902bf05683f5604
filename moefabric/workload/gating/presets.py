"""Named parameters of random gating, and the data to which they were fitted: `presets.json`.

A preset describes one model at its own number of experts; skew, concentration and overdispersion
hold for other numbers, too. What the source of a preset doesn't tell has the values of section
"Presets" of docs/guides/gating.md: inference doesn't drift, and tokens vary as 1/8 as many
independent ones, an overdispersion of 8 (Switch-base-128 has 9, Qwen1.5-MoE 32).
"""

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final

from moefabric.workload.gating.generator import GatingParameters


@dataclass(frozen=True)
class GatingPreset:
    """Parameters with a name.

    Attributes:
        fitted_to: Data or statistics from which they come.
        file: File of `examples/data` whose fit they are, if it ships; empty otherwise.
    """

    parameters: GatingParameters
    fitted_to: str
    file: str = ""


def _preset(parameters: dict[str, Any], **source: str) -> GatingPreset:
    loads = tuple(parameters.pop("loads", ()))
    return GatingPreset(GatingParameters(**parameters, loads=loads), **source)


_FILE: Final = files("moefabric.workload.gating") / "presets.json"
PRESETS: Final = {name: _preset(**entry) for name, entry in json.loads(_FILE.read_text()).items()}
"""Presets by name."""


def preset(name: str, **changes: float | str | None) -> GatingParameters:
    """Return the parameters of a preset.

    Args:
        name: Name of the preset.
        **changes: Parameters that replace the preset's, unless they are None.

    Raises:
        ValueError: If there is no such preset, or a parameter is wrong. The message says which.
    """
    known = PRESETS.get(name)
    if known is None:
        raise ValueError(f"{name!r} is not one of {', '.join(PRESETS)}")
    changed: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    return replace(known.parameters, **changed)
