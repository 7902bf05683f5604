"""The study of error-bounded compression: ratios, all-to-alls, training and accuracy."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moefabric import rate_text
from moefabric.api.charts import Axis, curve, document_picture, plot
from moefabric.api.plugins import Rate, Section, missing_package
from moefabric_studies.codecs.block_codecs import BLOCK_CODECS, HYBRID, block_codec
from moefabric_studies.codecs.error_bounded import Floats
from moefabric_studies.grids import Grid, captions, grid
from moefabric_studies.systems.dlrm import speed
from moefabric_studies.systems.dlrm.clicks import BOUNDS, CARDINALITIES, table_bounds, table_class
from moefabric_studies.systems.dlrm.lesson import Bounding, Lesson, Trained
from moefabric_studies.systems.dlrm.speed import CODECS, FabricSpeeds
from moefabric_studies.systems.study import Measure, Outcome, StudyContext

RANKS = 8
CODED = "dual-level"
GLOBAL_BOUND = 0.02
"""One bound for all tables (the authors' logs)."""
TABLE_WISE: Mapping[str, float] = {"tight": 0.01, "normal": 0.04, "loose": 0.04}
"""Bounds that the authors' logs compare with it."""
ARMS: Mapping[str, Bounding] = {
    "32-bit floats": Bounding(None),
    CODED: Bounding(BOUNDS),
    f"{GLOBAL_BOUND:g} for all tables": Bounding(dict.fromkeys(BOUNDS, GLOBAL_BOUND), first=1.0),
    "0.01 and 0.04 by table": Bounding(TABLE_WISE, first=1.0),
}
"""Trainings of the small model; the first one is without errors."""
_CODECS = tuple(name for name in BLOCK_CODECS if name != "fp32")
_SPEED_TICKS = (0.5, 1, 2, 5, 10, 20)
_RATIO_TICKS = (1, 2, 5, 10, 20, 50, 100)
_SHOWN: Mapping[str, int] = {"vector-lz": 1, "ans": 4, "zstd": 2, "zfp": 5, "hybrid": 7}
"""Colours of the codecs in the picture of ratios; the last one lies on top."""
FACTORS = (1.0, 2.0, 3.0, 4.0)
"""First factors of the early phase."""


class Ratios:
    """Ratios of plain to coded bytes of the vectors of all tables.

    Args:
        vectors: Shape [table, sample, dimension].
        ranks: Slices of a table.
    """

    def __init__(self, vectors: Floats, ranks: int) -> None:
        self._vectors, self._ranks = vectors, ranks

    def by_table(self, codec: str) -> list[float]:
        """Return the ratio of each table with the default bounds."""
        plain = self._vectors[0].nbytes
        return [plain / size for size in self._coded(codec, table_bounds())]

    def of_all(self, codec: str = HYBRID, bounds: NDArray[np.float64] | None = None) -> float:
        """Return the ratio of all tables together; the default bounds are those of the classes."""
        chosen = table_bounds() if bounds is None else bounds
        return self._vectors.nbytes / sum(self._coded(codec, chosen))

    def best_over_single(self) -> float:
        """Return the gain of choosing a stream for each block over the better single stream."""
        return self.of_all() / max(self.of_all("vector-lz"), self.of_all("ans"))

    def table_wise_over_global(self) -> float:
        """Return the gain of bounds by table over one bound for all tables."""
        equal = np.full(len(self._vectors), GLOBAL_BOUND)
        return self.of_all(bounds=table_bounds(TABLE_WISE)) / self.of_all(bounds=equal)

    def by_factor(self) -> list[float]:
        """Return the ratio at each of `FACTORS`."""
        return [self.of_all(bounds=factor * table_bounds(BOUNDS)) for factor in FACTORS]

    def _coded(self, codec: str, bounds: NDArray[np.float64]) -> list[int]:
        """Return the bytes of each table's vectors, a slice for each rank."""
        return [
            sum(len(block_codec(codec, bound).encode(b)) for b in np.split(table, self._ranks))
            for table, bound in zip(self._vectors, bounds, strict=True)
        ]


class Setup(Section):
    """Sizes and rates."""

    rates: list[Rate] = Field(min_length=1)
    """Rates of the NICs."""
    train_rate: Rate
    """Rate of the NICs at which iterations are timed."""
    all_to_all_share: float = Field(gt=0, lt=1)
    """Share of all-to-alls in iterations without coding."""
    batch: int = Field(gt=0, multiple_of=RANKS)
    """Samples of all ranks."""
    repeat: int = Field(gt=0)
    """All-to-alls and iterations of each kind."""
    most_categories: int = Field(gt=0)
    """Largest number of categories of a table."""
    dimension: int = Field(gt=0)
    """Numbers of a vector."""
    width: int = Field(gt=0)
    """Width of the hidden layers."""
    seeds: int = Field(gt=0)
    """Models that are trained in one process."""
    iterations: int = Field(gt=0)
    """Training iterations of each of these models."""
    learning_batch: int = Field(gt=0, multiple_of=RANKS)
    """Samples of an iteration of these models."""
    held_out: int = Field(gt=0)
    """Batches by which these models are judged."""

    def lesson(self, batch: int) -> Lesson:
        """Return the sizes of a training with this batch."""
        sizes = self.most_categories, self.dimension, self.width, batch, RANKS
        return Lesson(*sizes, self.iterations, self.held_out)


class DlrmStudy:
    """Measures the claims of dual-level lossy compression."""

    setup = Setup

    def measure(self, setup: Setup, context: StudyContext) -> Outcome:
        """Train small models in one process, then one with a rank on each server of a fabric."""
        models = _trained_models(setup, context)
        ratios = [Ratios(model.vectors, RANKS) for model in models[CODED]]
        fabrics, training = _measured_fabrics(setup, context)
        by_table = {codec: ratios[0].by_table(codec) for codec in _CODECS}
        note = "Accuracy without coding minus that with it, one sample a seed."
        lost = Measure.median_of(_lost(models, CODED), note)
        measures = {**_ratio_measures(ratios), **_speed_measures(fabrics, training)}
        return Outcome(
            {**measures, "accuracy_lost": lost},
            {"dlrm-speed-up": speed_up_chart(fabrics), "dlrm-ratios": ratio_strips(by_table)},
            captions("systems/dlrm"),
            [_speed_grid(fabrics), _accuracy_grid(models), _table_grid(by_table, ratios[0])],
        )


def _trained_models(setup: Setup, context: StudyContext) -> dict[str, list[Trained]]:
    try:
        from moefabric_studies.systems.dlrm.accuracy import trained
    except ImportError as error:
        raise missing_package("a study that trains models", "torch") from error
    lesson = setup.lesson(setup.learning_batch)
    return {
        name: [
            context.keep(f"{name}, seed {seed}", Trained, partial(trained, lesson, bounding, seed))
            for seed in range(setup.seeds)
        ]
        for name, bounding in ARMS.items()
    }


def _measured_fabrics(
    setup: Setup, context: StudyContext
) -> tuple[list[FabricSpeeds], speed.TrainingSpeed]:
    """Measure all-to-alls at each rate, and training at one of them."""

    def measure(name: str, rate_bps: float) -> tuple[FabricSpeeds, speed.TrainingSpeed | None]:
        with speed.dlrm_ranks(name, rate_bps, setup.lesson(setup.batch)) as ranks:
            speeds = speed.measure_speeds(ranks, rate_bps, setup.repeat)
            if rate_bps != setup.train_rate:
                return speeds, None
            return speeds, speed.measure_training(ranks, setup.all_to_all_share, setup.repeat)

    fabrics, training = [], None
    for rate_bps in setup.rates:
        name, kind = f"dlrm-{rate_bps / 1e3:.0f}k", tuple[FabricSpeeds, speed.TrainingSpeed | None]
        speeds, trained = context.keep(name, kind, partial(measure, name, rate_bps))
        fabrics.append(speeds)
        training = training or trained
    assert training is not None
    return fabrics, training


def _ratio_measures(ratios: Sequence[Ratios]) -> dict[str, Measure]:
    factors = [one.by_factor() for one in ratios]
    return {
        "best_over_single": Measure.median_of([one.best_over_single() for one in ratios]),
        "table_wise_over_global": Measure.median_of(
            [one.table_wise_over_global() for one in ratios]
        ),
        "least_step_by_factor": Measure.median_of([least_step(one) for one in factors]),
        "factor_4_over_2": Measure.median_of([one[3] / one[1] for one in factors]),
    }


def _speed_measures(
    fabrics: Sequence[FabricSpeeds], training: speed.TrainingSpeed
) -> dict[str, Measure]:
    hybrid, zstd = ([fabric.of(codec) for fabric in fabrics] for codec in (HYBRID, "zstd"))
    worst = [error for fabric in fabrics for error in fabric.worst_errors]
    fits = [one.median_speed_up / one.predicted for one in hybrid]
    pairs = list(zip(hybrid, zstd, strict=True))
    return {
        "worst_error": Measure(max(worst), tuple(worst), "Forward and backward, all ranks."),
        "measured_over_formula": Measure.median_of(fits, "One sample a link rate."),
        "training_speed_up": Measure.median_of(
            training.speed_ups,
            f"All-to-alls take {training.share:.0%} of an iteration without coding, and become "
            f"{training.exchange_speed_up:.2f} times as fast.",
        ),
        "training_over_amdahl": Measure.median_of(
            [one / training.amdahl for one in training.speed_ups]
        ),
        "bytes_over_zstd": Measure.median_of([b.ratio / a.ratio for a, b in pairs]),
        "zstd_speed_over_hybrid": Measure.median_of(
            [b.median_speed_up / a.median_speed_up for a, b in pairs], "One sample a link rate."
        ),
    }


def _lost(models: Mapping[str, Sequence[Trained]], arm: str) -> list[float]:
    """Return the points of accuracy that each seed's model has lost."""
    exact = next(iter(models.values()))
    return [100 * (a.accuracy - b.accuracy) for a, b in zip(exact, models[arm], strict=True)]


def _speed_grid(fabrics: Sequence[FabricSpeeds]) -> Grid:
    rows = [_speed_cells(one) for fabric in fabrics for one in fabric.speeds]
    return grid("systems/dlrm/speeds", rows)


def _speed_cells(coded: speed.CodecSpeed) -> tuple[str, ...]:
    low, high = min(coded.measured), max(coded.measured)
    return (
        rate_text(coded.rate_bps),
        coded.codec,
        f"{coded.ratio:.2f}",
        f"{1e3 * coded.encode_s:.0f} ms",
        f"{1e3 * coded.decode_s:.0f} ms",
        f"{coded.predicted:.2f}x",
        f"{coded.median_speed_up:.2f}x ({low:.2f} to {high:.2f}, n = {len(coded.measured)})",
    )


def _accuracy_grid(models: Mapping[str, Sequence[Trained]]) -> Grid:
    rows = []
    for arm, trained in models.items():
        lost = _lost(models, arm)
        rows.append(
            (
                arm,
                f"{100 * median(one.accuracy for one in trained):.2f} %",
                f"{median(lost):+.3f} ({min(lost):+.3f} to {max(lost):+.3f})",
                f"{median(one.log_loss for one in trained):.4f}",
                f"{median(Ratios(one.vectors, RANKS).of_all() for one in trained):.2f}",
            )
        )
    no_clicks = median(one.no_clicks for one in models[CODED])
    return grid(
        "systems/dlrm/accuracy", rows, seeds=len(models[CODED]), without_clicks=100 * no_clicks
    )


def _table_grid(by_table: Mapping[str, Sequence[float]], ratios: Ratios) -> Grid:
    rows = [
        (str(n), table_class(n), f"{size:,}", *(f"{values[n]:.1f}" for values in by_table.values()))
        for n, size in enumerate(CARDINALITIES)
    ]
    total = tuple(f"{ratios.of_all(codec):.1f}" for codec in by_table)
    return grid(
        "systems/dlrm/tables",
        (*rows, ("all", "", "", *total)),
        header=("table", "class", "categories of Criteo-Kaggle", *by_table),
    )


def speed_up_chart(fabrics: Sequence[FabricSpeeds]) -> str:
    """Draw the speed-up of all-to-alls over the link rate, a chart for each codec."""
    rates = [fabric.speeds[0].rate_bps for fabric in fabrics]
    texts = {rate: rate_text(rate) for rate in rates}
    x = Axis(0.9 * min(rates), 1.1 * max(rates), texts, "link rate", logarithmic=True)
    y = Axis(0.4, 25, {tick: f"{tick:g}x" for tick in _SPEED_TICKS}, logarithmic=True)
    panels = []
    for codec in CODECS:
        speeds = [fabric.of(codec) for fabric in fabrics]
        formula = [(s.rate_bps, s.predicted, f"formula: {s.predicted:.2f}x") for s in speeds]
        measured = [(s.rate_bps, one, f"{one:.2f}x") for s in speeds for one in s.measured]
        curves = curve(0, formula, dashed=True), curve(1, measured, joined=False)
        panels.append(plot(codec, x, y, curves, 1.0))
    legend = [("t0", "formula"), ("t1", "measured")]
    title = "Speed-up of the all-to-all over 32-bit floats"
    return document_picture(title, panels, columns=2, legend=legend)


def ratio_strips(by_table: Mapping[str, Sequence[float]]) -> str:
    """Draw the compression ratio of each table by codec, a chart for each class of bounds."""
    y = Axis(1, 130, {tick: f"{tick}" for tick in _RATIO_TICKS}, logarithmic=True)
    panels = []
    for class_ in ("tight", "normal", "loose"):
        tables = [t for t in range(len(CARDINALITIES)) if table_class(t) == class_]
        x = Axis(-0.5, len(tables) - 0.5, {n: f"{t}" for n, t in enumerate(tables)}, "table")
        ratios = {codec: [by_table[codec][table] for table in tables] for codec in _SHOWN}
        curves = (
            curve(
                colour,
                [
                    (n, ratio, f"{codec}, table {tables[n]}: {ratio:.1f}")
                    for n, ratio in enumerate(ratios[codec])
                ],
                joined=False,
            )
            for codec, colour in _SHOWN.items()
        )
        panels.append(plot(f"{class_} bound", x, y, curves))
    legend = [(f"t{colour}", codec) for codec, colour in _SHOWN.items()]
    title = "Ratio of plain to coded bytes by table"
    return document_picture(title, panels, columns=3, legend=legend)


def least_step(ratios: Sequence[float]) -> float:
    """Return the least ratio of a value to the one before it."""
    return min(after / before for before, after in pairwise(ratios))
