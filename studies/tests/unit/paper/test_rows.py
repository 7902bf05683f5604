"""Rows of the paper's tables: bands, null models, verdicts and counts."""

import pytest
from moefabric_studies.paper.loader import RowSpec, TableSpec
from moefabric_studies.paper.results import PaperResults
from moefabric_studies.paper.rows import (
    CALIBRATED,
    INPUT,
    INVALID,
    NULL_FITS,
    OUTSIDE,
    REPRODUCED,
    Bounds,
    Counts,
    PaperRow,
    verdict,
)
from moefabric_studies.paper.tables import build_table
from moefabric_studies.paper.text import verdict_text


@pytest.mark.parametrize(
    ("band", "value", "null", "expected"),
    [
        ((2.25, 2.35), 2.3, 1.0, REPRODUCED),
        ((2.25, 2.35), 2.3, 2.29, NULL_FITS),
        ((2.25, 2.35), 2.36, 2.29, OUTSIDE),
        ((None, 68.5), 42.0, 50.0, NULL_FITS),
        ((None, 68.5), 42.0, 70.0, REPRODUCED),
        ((99.5, None), 34.6, 0.0, OUTSIDE),
        ((99.5, None), None, 0.0, INVALID),
    ],
)
def test_verdict_needs_value_inside_and_null_outside(
    band: Bounds, value: float | None, null: float, expected: str
) -> None:
    assert verdict(band, value, null) == expected


def row(verdict: str, null: float | None) -> PaperRow:
    return PaperRow("a", "b", (1.0, 1.0), (0.9, 1.1), 1.0, verdict, null=null)


def test_counts_leave_out_values_taken_from_the_paper() -> None:
    rows = [row(REPRODUCED, 2.0), row(NULL_FITS, 1.0), row(OUTSIDE, 1.0), row(OUTSIDE, 3.0)]
    assert Counts.of([*rows, row(CALIBRATED, None), row(INPUT, None), row(INVALID, 1.0)]) == Counts(
        rows=4, inside=2, null_inside=2, reproduced=1, distance=0.0, null_distance=50.0
    )


@pytest.mark.parametrize(
    ("paper", "band", "value", "words", "expected"),
    [
        ((2.0, 2.0), (1.9, 2.1), 2.05, False, 2.5),
        ((2.0, 2.0), (1.9, 2.1), 1.5, False, -25.0),
        ((1.0, 1.0), (0.95, 1.05), 1.04, True, 0.0),
        ((1.0, 1.0), (0.95, 1.05), 1.15, True, 10.0),
        ((33.0, 55.0), (32.5, 55.5), 40.0, False, 0.0),
        ((100.0, None), (99.5, None), 49.5, False, -50.0),
        ((None, 1.6), (None, 1.65), 1.0, False, 0.0),
        ((0.0, None), (0.05, None), -8.6, False, -8.65),
    ],
)
def test_distance_counts_from_a_number_or_from_the_nearest_bound(
    paper: Bounds, band: Bounds, value: float, words: bool, expected: float
) -> None:
    built = PaperRow("a", "b", paper, band, value, OUTSIDE, words=words)
    assert built.distance == pytest.approx(expected)


def test_verdict_outside_says_how_far_in_per_cent_or_in_points_where_the_paper_has_0() -> None:
    far = PaperRow("a", "b", (2.0, 2.0), (1.9, 2.1), 1.5, OUTSIDE)
    assert verdict_text(far) == "outside, -25.0 %"
    no_gain = PaperRow("a", "b", (None, 0.0), (None, 5.0), 13.3, OUTSIDE)
    assert verdict_text(no_gain) == "outside, +8.3 points"
    assert verdict_text(row(REPRODUCED, 2.0)) == REPRODUCED


@pytest.mark.parametrize(
    ("claim", "paper", "band"),
    [
        ("value", 2.3, (2.25, 2.35)),
        ("value", [1.0, 1.2], (0.95, 1.25)),
        ("at-most", 2.3, (None, 2.35)),
        ("at-least", 2.3, (2.25, None)),
        ("more-than", 1.0, (1.05, None)),
    ],
)
def test_band_is_as_narrow_as_the_papers_precision(
    predicted: PaperResults, claim: str, paper: float | list[float], band: tuple[float, float]
) -> None:
    spec = TableSpec.model_validate(
        {
            "table": "t",
            "title": "T",
            "source": "s",
            "precision": 0.05,
            "rows": [
                {
                    "row": "r",
                    "paper": paper,
                    "claim": claim,
                    "measure": "cost_ratio",
                    "base": "fat-tree",
                }
            ],
        }
    )
    (built,) = build_table(spec, predicted.evaluation).rows
    assert built.band == pytest.approx(band)


def test_null_of_efficiency_is_the_price_ratio(predicted: PaperResults) -> None:
    rows = {(row.name, row.subject): row for row in predicted.rows("efficiency")}
    built = rows["to fat-tree", "mixtral-8x22b at 400Gb/s"]
    assert built.null == pytest.approx(2.289, abs=1e-3)


def test_null_of_an_iteration_is_the_published_fat_tree(predicted: PaperResults) -> None:
    published = predicted.evaluation.published
    rows = [row for row in predicted.rows("iteration") if row.name == "mixnet"]
    assert [row.null for row in rows] == [
        published[job, rate, "fat-tree"] for job, rate, name in published if name == "mixnet"
    ]


def test_degree_and_failure_rows_fail_without_effect(predicted: PaperResults) -> None:
    for name, no_effect in (("degree", 1.0), ("failures", 0.0), ("copilot", 0.0)):
        judged = [built for built in predicted.rows(name) if built.is_judged]
        assert {(built.null, built.is_null_inside) for built in judged} == {(no_effect, False)}


def test_every_judged_row_has_precision_and_null(predicted: PaperResults) -> None:
    judged = [(t, built) for t in predicted.tables for built in t.rows if built.is_judged]
    assert len(judged) == 118
    for table, built in judged:
        assert built.null is not None
        assert ", " in built.precision
        assert table.null_model


def test_unknown_claim_is_refused() -> None:
    with pytest.raises(ValueError, match="claim"):
        RowSpec.model_validate({"row": "a", "paper": 1, "measure": "speed", "claim": "about"})
