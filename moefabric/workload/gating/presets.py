"""Named parameters of random gating, and the data to which they were fitted.

A preset describes one model at its own number of experts; skew, concentration and overdispersion
hold for other numbers, too. What the source of a preset doesn't tell has the values of section
"Presets" of docs/guides/gating.md: inference doesn't drift, and tokens vary as 1/8 as many
independent ones (`INFERENCE_OVERDISPERSION`).
"""

from dataclasses import dataclass, replace
from typing import Final

from moefabric.workload.gating.generator import GatingParameters

INFERENCE_OVERDISPERSION: Final = 8.0
"""Overdispersion of presets whose source has one batch only: Switch-base-128 has 9, Qwen1.5-MoE 32
(see `switch` and `qwen`)."""
_HARMOENY: Final = (
    "statistics of HarMoEny's measurements (sacs-epfl/HarMoEny at 563b5a6, which has no licence)"
)
_ROUTING: Final = (
    "allenai/OLMoE at 357454f, scripts/routing_output, layers 0, 7 and 15 (Apache-2.0)"
)
_SGLANG: Final = "expert distribution of DeepSeek-V3/R1 in issue 6017 of sgl-project/sglang"
_TOY: Final = (
    "own training run: 4 layers, 16 experts, 8 ranks with a text domain each, steps 600 to 1199"
)


@dataclass(frozen=True)
class GatingPreset:
    """Parameters with a name.

    Attributes:
        parameters: The parameters.
        fitted_to: Data or statistics from which they come.
        file: File of `examples/data` whose fit they are, if it ships; empty otherwise.
    """

    parameters: GatingParameters
    fitted_to: str
    file: str = ""


PRESETS: Final[dict[str, GatingPreset]] = {
    "mixtral-web": GatingPreset(
        GatingParameters(
            8, 2, 4096, skew=0.0964, skew_variation=0.386, overdispersion=INFERENCE_OVERDISPERSION
        ),
        f"Mixtral-8x7B on web text (C4): {_ROUTING}",
        "mixtral-8x7b-domains.npz",
    ),
    "mixtral-domains": GatingPreset(
        GatingParameters(
            8,
            2,
            4096,
            skew=0.0788,
            skew_variation=0.565,
            concentration=106.0,
            overdispersion=INFERENCE_OVERDISPERSION,
        ),
        f"Mixtral-8x7B, a rank each for code, papers, web, books and Wikipedia: {_ROUTING}",
        "mixtral-8x7b-domains.npz",
    ),
    "olmoe-web": GatingPreset(
        GatingParameters(
            64, 8, 4096, skew=0.399, skew_variation=0.149, overdispersion=INFERENCE_OVERDISPERSION
        ),
        f"OLMoE-1B-7B on web text (C4): {_ROUTING}",
        "olmoe-1b-7b-domains.npz",
    ),
    "olmoe-domains": GatingPreset(
        GatingParameters(
            64,
            8,
            4096,
            skew=0.304,
            skew_variation=0.271,
            concentration=1.91,
            overdispersion=INFERENCE_OVERDISPERSION,
            layer_correlation=0.22,
        ),
        "OLMoE-1B-7B, a rank each for code, papers, web, books, Wikipedia and instructions: "
        f"{_ROUTING}",
        "olmoe-1b-7b-domains.npz",
    ),
    "deepseek-prefill": GatingPreset(
        GatingParameters(
            256,
            8,
            4096,
            skew=0.896,
            skew_variation=0.188,
            overdispersion=INFERENCE_OVERDISPERSION,
            layer_correlation=0.214,
            groups=8,
            group_share=0.403,
        ),
        f"{_SGLANG}, prefill of 4,096 tokens",
        "deepseek-r1-prefill-4096.json.gz",
    ),
    "deepseek-decode": GatingPreset(
        GatingParameters(
            256,
            8,
            128,
            skew=0.737,
            skew_variation=0.198,
            overdispersion=INFERENCE_OVERDISPERSION,
            layer_correlation=0.236,
            groups=8,
            group_share=0.399,
        ),
        f"{_SGLANG}, decoding of 100 tokens after 2,000",
    ),
    "qwen": GatingPreset(
        GatingParameters(
            60, 4, 4096, skew=1.3, skew_variation=0.2, concentration=4.5, overdispersion=32.0
        ),
        f"Qwen1.5-MoE-A2.7B, 6 ranks: {_HARMOENY}: variation 1.4 to 1.65, distance of rows 0.28 "
        "and of steps 0.057 to 0.077",
    ),
    "switch": GatingPreset(
        GatingParameters(128, 1, 65536, skew=1.5, skew_variation=0.25, overdispersion=9.2),
        f"Switch-base-128, encoder layers 0 to 5, 8 ranks: {_HARMOENY}: busiest expert 6 to 60 "
        "times the mean, distance of rows 0.03 to 0.07 and of steps 0.014 to 0.027",
    ),
    "toy-training-aux": GatingPreset(
        GatingParameters(
            16,
            2,
            512,
            skew=0.0867,
            skew_variation=0.587,
            concentration=6.55,
            overdispersion=3.69,
            persistence=0.565,
            drift_time=7.23,
        ),
        f"{_TOY}, auxiliary loss 0.01",
        "training-1200-steps.npz",
    ),
    "toy-training-noaux": GatingPreset(
        GatingParameters(
            16,
            2,
            512,
            skew=0.714,
            skew_variation=0.288,
            concentration=5.38,
            overdispersion=3.87,
            persistence=0.994,
            drift_time=16.8,
        ),
        f"{_TOY}, without auxiliary loss",
    ),
    "mixnet-matrix": GatingPreset(
        GatingParameters(
            8,
            1,
            32768,
            "recorded",
            skew=1.0,
            loads=(2.3713, 1.3643, 1.296, 0.9751, 0.7935, 0.7335, 0.2454, 0.2209),
            overdispersion=91.8,
        ),
        "the gating matrix of MixNet's public simulator: loads as there, ranks alike",
        "gating-8x8.json",
    ),
    "rank1-hot-columns": GatingPreset(
        GatingParameters(64, 8, 4096, "zipf", skew=0.8),
        "none: all ranks prefer the same experts, by Zipf's law",
    ),
    "per-source-zipf": GatingPreset(
        GatingParameters(8, 1, 32768, "zipf", skew=1.6, shared=False),
        "none: rows of Zipf(1.6), each in an order of its own, as in matrices that forks of "
        "MixNet's simulator have",
    ),
    "uniform": GatingPreset(
        GatingParameters(64, 8, 4096), "none: tokens choose all experts alike, independently"
    ),
}
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
    given = {key: value for key, value in changes.items() if value is not None}
    return replace(known.parameters, **given)  # type: ignore[arg-type]
