"""BigMac's claims: experts exchange narrow tokens, compared with tokens of the full hidden size."""

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moefabric import Result
from moefabric.api.charts import Axis, curve, document_picture, plot
from moefabric.api.plugins import Section, experiment_of
from moefabric.api.results import ExperimentPrediction, FabricResult
from moefabric.api.workloads import BigMac, Plain
from moefabric_studies.grids import Grid, captions, grid
from moefabric_studies.systems.bigmac.fine_grained import FineGrained
from moefabric_studies.systems.measured import (
    ONE_NIC,
    all_to_all_ratios,
    all_to_all_s,
    iteration_ratios,
    iteration_s,
    port_bytes,
    valid_fabrics,
)
from moefabric_studies.systems.study import Measure, Outcome, StudyContext

WIDE, NARROW, FP8, BOTH = "fine-grained", "bigmac", "fine-grained-fp8", "bigmac-fp8"
TRANSFORMS: Final[Mapping[str, str]] = {
    WIDE: "none",
    NARROW: "bigmac(r=0.25)",
    FP8: "fp8",
    BOTH: "bigmac(r=0.25, inner=fp8)",
}
TOP_K: Final = (1, 2, 4, 6, 8)
PUBLISHED_SHARES: Final = (0.599, 0.713, 0.841, 0.891, 0.918)
"""Share of all-to-alls in an iteration of the fine-grained model, by `TOP_K` (table 1)."""
PUBLISHED_GAINS: Final[Mapping[int, tuple[float, float]]] = {8: (3.72, 2.95), 4: (3.48, 2.37)}
"""Gains of all-to-alls and of iterations by experts of a token, with 32 ranks of a GPU each."""
SEQUENCES: Final = (512, 8192)
"""Shortest and longest sequences of the comparison of lengths."""


class Setup(Section):
    """Sizes of the comparison."""

    experiment: dict[str, Any]
    """The experiment; its fabrics, experts of a token and speed of GPUs are those of the study."""
    all_to_all_share: float = Field(gt=0, lt=1)
    """Share of all-to-alls in an iteration of the fine-grained model with top-8, to which the
    speed of GPUs is fitted."""


class BigMacStudy:
    """Measures the claims of BigMac."""

    setup = Setup

    def measure(self, setup: Setup, context: StudyContext) -> Outcome:
        """Measure top-8 and top-4 with packets, and predict the other experts of a token."""
        sized = _with_fitted_speed(setup, context)
        top_8 = context.run(_document(sized, 8, (WIDE, NARROW, FP8)))
        top_4 = context.run(_document(sized, 4, (WIDE, NARROW)))
        runs = {8: top_8, 4: top_4}
        predictions = {k: context.predict(_document(sized, k, tuple(TRANSFORMS))) for k in TOP_K}
        wide, narrow, fp8 = (top_8[name] for name in (WIDE, NARROW, FP8))
        eight, four = top_8.experiment, top_4.experiment
        gains = {
            f"{name}_top_{k}": Measure.median_of(of(run[WIDE], run[NARROW])).on(
                run.experiment, WIDE, NARROW
            )
            for k, run in runs.items()
            for name, of in (("all_to_all", all_to_all_ratios), ("iteration", iteration_ratios))
        }
        top_4_over_8 = Measure.median_of(iteration_ratios(top_4[WIDE], narrow))
        fp8_over_narrow = Measure.median_of(iteration_ratios(fp8, narrow))
        return Outcome(
            {
                "bytes_saved": _bytes_saved(wide, narrow).on(eight, WIDE, NARROW),
                **gains,
                "top_4_over_bigmac_top_8": top_4_over_8.on(four, WIDE).on(eight, NARROW),
                "fp8_over_bigmac": fp8_over_narrow.on(eight, FP8, NARROW),
                "gain_short_over_long": _gain_by_length(sized, context),
                "projection_cost": _projection_cost(FineGrained()),
                **_formulae(FineGrained()),
            },
            {"bigmac": _picture(predictions, runs)},
            captions("systems/bigmac"),
            [_forms(predictions, runs), _differences(runs)],
            [top_8, top_4],
        )


def _document(
    experiment: Mapping[str, Any], top_k: int, forms: Sequence[str], sequence: int | None = None
) -> dict[str, Any]:
    """Return an experiment with a fabric for each form of the same number of tokens."""
    training = dict(experiment["training"])
    if sequence is not None:
        tokens = training["sequence"] * training["micro_batch"]
        training |= {"sequence": sequence, "micro_batch": tokens // sequence}
    return {
        **experiment,
        "experiment": f"{experiment['experiment']}-top-{top_k}",
        "model": {**experiment["model"], "top_k": top_k},
        "training": training,
        "fabrics": [{"name": form, **ONE_NIC, "transform": TRANSFORMS[form]} for form in forms],
    }


def _with_fitted_speed(setup: Setup, context: StudyContext) -> dict[str, Any]:
    """Return the experiment with the speed of GPUs that gives all-to-alls their share."""
    [plain] = context.predict(_document(setup.experiment, 8, (WIDE,))).fabrics
    share = setup.all_to_all_share
    training = dict(setup.experiment["training"])
    used = experiment_of(_document(setup.experiment, 8, (WIDE,))).training.utilisation
    fitted = used * plain.compute_s / plain.exposed_comm_s * share / (1 - share)
    return {**setup.experiment, "training": {**training, "utilisation": fitted}}


def _bytes_saved(wide: FabricResult, narrow: FabricResult) -> Measure:
    """Return the part of the bytes that NICs don't receive any more, in per cent."""
    pairs = zip(port_bytes(wide), port_bytes(narrow), strict=True)
    return Measure.median_of([100 * (1 - less / more) for more, less in pairs])


def _gain_by_length(experiment: Mapping[str, Any], context: StudyContext) -> Measure:
    gains = []
    for sequence in SEQUENCES:
        plain, narrow = context.predict(_document(experiment, 8, (WIDE, NARROW), sequence)).fabrics
        gains.append(plain.iteration_s / narrow.iteration_s)
    pairs = zip(gains, SEQUENCES, strict=True)
    note = ", ".join(f"{gain:.2f}x at {length}" for gain, length in pairs)
    note = f"Gain of an iteration by tokens of a sequence: {note}."
    return Measure(gains[0] / gains[1], note=note)


def _formulae(model: FineGrained) -> dict[str, Measure]:
    """Return the values of table 4."""
    plain, narrow = Plain(), BigMac(model.r)
    less, more = model.flops(plain), model.flops(narrow)
    note = f"{less / 1e12:.2f} and {more / 1e12:.2f} TFLOP."
    return {
        "flops_added": Measure(100 * (more / less - 1), note=note),
        "parameters": Measure(model.parameters(narrow) / 1e9),
        "all_to_all_gib": Measure(model.all_to_all_bytes(narrow) / 2**30),
    }


def _projection_cost(model: FineGrained, tokens: int = 1024, repeats: int = 12) -> Measure:
    """Time both projections and the experts of the same tokens, with matrices of real width.

    Tokens spread evenly over the experts. A few experts stand for all: their weights don't fit
    the caches either.
    """
    random = np.random.default_rng(1)
    width, narrow = model.hidden, round(model.r * model.hidden)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return random.standard_normal((rows, columns), dtype=np.float32)

    down, up = matrix(width, narrow), matrix(narrow, width)
    experts = [(matrix(narrow, width), matrix(width, narrow)) for _ in range(8)]
    sent = matrix(tokens, width)
    copies = [matrix(tokens * model.top_k // len(experts), narrow) for _ in experts]
    ratios = []
    for _ in range(repeats):
        start = perf_counter()
        (sent @ down) @ up
        projected = perf_counter()
        for received, (widen, shrink) in zip(copies, experts, strict=True):
            np.maximum(received @ widen, 0) @ shrink
        ended = perf_counter()
        ratios.append((projected - start) / (ended - projected) * model.top_k)
    return Measure.median_of(ratios[1:], "One thread pool computes both; the first run isn't used.")


def _share(prediction: ExperimentPrediction, form: str) -> float:
    [fabric] = [one for one in prediction.fabrics if one.fabric == form]
    return fabric.exposed_comm_s / fabric.iteration_s


def _gain(prediction: ExperimentPrediction, form: str) -> float:
    seconds = {one.fabric: one.iteration_s for one in prediction.fabrics}
    return seconds[WIDE] / seconds[form]


def _picture(predictions: Mapping[int, ExperimentPrediction], runs: Mapping[int, Result]) -> str:
    """Draw shares of all-to-alls beside table 1's, and gains beside measured ones."""
    across = Axis(1, 8, {float(k): str(k) for k in TOP_K}, "experts of a token")
    percent = Axis(0, 100, {20.0 * n: f"{20 * n} %" for n in range(6)})
    colours, up = {WIDE: 7, NARROW: 1, FP8: 4, BOTH: 2}, Axis.numbers(0, 6, "{:g}x".format)
    shares, gains = (
        [
            curve(c, [(k, of(one, form), "") for k, one in predictions.items()], marks=False)
            for form, c in colours.items()
        ]
        for of in (lambda one, form: 100 * _share(one, form), _gain)
    )
    table = zip(TOP_K, PUBLISHED_SHARES, strict=True)
    published = [(k, 100 * share, f"table 1, top-{k}: {share:.1%}") for k, share in table]
    for k, run in runs.items():
        wide = run[WIDE]
        for result in valid_fabrics(run.results) if valid_fabrics([wide]) else ():
            gain = median(iteration_ratios(wide, result))
            point = k, gain, f"{result.fabric}, top-{k}, measured: {gain:.2f}x"
            gains.append(curve(colours[result.fabric], [point], joined=False))
    panels = [
        plot("Share of all-to-alls", across, percent, [*shares, curve(5, published)]),
        plot("Gain of an iteration", across, up, gains, 1.0),
    ]
    legend = [*((f"t{c}", form) for form, c in colours.items()), ("t5", "table 1 of the paper")]
    title = "BigMac and FP8 by experts of a token: lines predicted, dots with packets"
    return document_picture(title, panels, columns=2, legend=legend)


def _forms(predictions: Mapping[int, ExperimentPrediction], runs: Mapping[int, Result]) -> Grid:
    """Return predicted and measured times of each form of tokens."""
    rows = []
    for k, run in runs.items():
        measured = {result.fabric: iteration_s(result) for result in valid_fabrics(run.results)}
        invalid = {result.fabric for result in run.results} - measured.keys()
        for fabric in predictions[k].fabrics:
            name, seconds = fabric.fabric, measured.get(fabric.fabric)
            missing = "invalid" if name in invalid else "—"
            predicted = (
                f"{1e3 * fabric.all_to_all_s:.1f} ms",
                f"{_share(predictions[k], name):.1%}",
                f"{fabric.iteration_s:.3f} s",
                f"{_gain(predictions[k], name):.2f}x",
            )
            own = f"{seconds:.3f} s" if seconds else missing
            gain = f"{measured[WIDE] / seconds:.2f}x" if seconds and WIDE in measured else missing
            rows.append((f"top-{k}", name, *predicted, own, gain))
    times = "all-to-all", "share", "iteration", "gain", "measured iteration", "measured gain"
    return grid("systems/bigmac/forms", rows, header=("experts", "tokens", *times))


def _differences(runs: Mapping[int, Result]) -> Grid:
    """Return the gains with the costs of table 1 that are neither bytes nor FLOPs."""
    rows, compute_s = [], 0.0
    for k, run in runs.items():
        wide, narrow = (run[name] for name in (WIDE, NARROW))
        if len(valid_fabrics((wide, narrow))) < 2:
            rows.append((f"top-{k}", *("invalid",) * 5, f"{PUBLISHED_GAINS[k][1]:.2f}x"))
            continue
        seconds = [all_to_all_s(fabric) for fabric in (wide, narrow)]
        published, published_gain = PUBLISHED_GAINS[k]
        fixed_s = (seconds[0] - published * seconds[1]) / (published - 1)
        waits_s = fixed_s * len(wide.collectives) / len(wide.iterations)
        whole = [iteration_s(fabric) for fabric in (wide, narrow)]
        own_s = median(one.compute_s or 0.0 for one in wide.iterations)
        compute_s = compute_s or own_s
        constant_s = waits_s + compute_s - own_s
        rows.append(
            (
                f"top-{k}",
                f"{seconds[0] / seconds[1]:.2f}x",
                f"{1e3 * fixed_s:.1f} ms",
                f"{whole[0] / whole[1]:.2f}x",
                f"{(whole[0] + waits_s) / (whole[1] + waits_s):.2f}x",
                f"{(whole[0] + constant_s) / (whole[1] + constant_s):.2f}x",
                f"{published_gain:.2f}x",
            )
        )
    return grid("systems/bigmac/differences", rows)
