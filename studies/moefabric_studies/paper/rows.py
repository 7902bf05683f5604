"""Rows of a table: the paper's value, its band, a null model's value, ours, and the verdict.

A band is as narrow as the paper's own precision. A null model needs no knowledge of the network; a
row that it fits too says nothing about the model under test.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Self

Bounds = tuple[float | None, float | None]
"""Lower and upper bound; None is an open end."""

REPRODUCED: Final = "reproduced"
"""Inside the band, and the null model isn't."""
NULL_FITS: Final = "null fits too"
"""Inside the band, and so is the null model."""
OUTSIDE: Final = "outside"
CALIBRATED: Final = "calibrated"
"""The value was an input of the calibration, or fitted to the paper's."""
INPUT: Final = "input"
"""The value was taken from the paper."""
REPORTED: Final = "reported"
"""The paper gives no value."""
INVALID: Final = "invalid"
"""The measurement that the row needs is invalid; the row has no value."""
MET: Final = "met"
MISSED: Final = "missed"

JUDGED: Final = frozenset({REPRODUCED, NULL_FITS, OUTSIDE})
"""Verdicts of rows that count as predictions of the paper's values."""

_JSON_KEYS: Final = {"subject": "on", "value": "ours"}
"""Keys of a row's JSON that differ from the attributes."""


def contains(band: Bounds, value: float) -> bool:
    """Return whether a band contains a value."""
    low, high = band
    return (low is None or value >= low) and (high is None or value <= high)


@dataclass(frozen=True)
class PaperRow:
    """A row of a table.

    Attributes:
        name: name of the row.
        subject: model, rate or network of the row.
        paper: the paper's value, from low to high; None if it gives none.
        band: values within which the verdict is positive; None if the row has no verdict.
        value: the predicted or, with measurements, the emulated value; None if the measurement is
            invalid.
        verdict: verdict of the row.
        unit: unit of the values.
        why: reason for a difference.
        null: value of the null model; None if the row has no verdict.
        precision: precision of the paper's value, and where it comes from.
        source: place of the paper's value, if it isn't the table's.
        predicted: the predicted value beside an emulated one.
        words: whether the paper says it in words, for which the band is what they allow.
    """

    name: str
    subject: str
    paper: Bounds | None
    band: Bounds | None
    value: float | None
    verdict: str
    unit: str = "x"
    why: str = ""
    null: float | None = None
    precision: str = ""
    source: str = ""
    predicted: float | None = None
    words: bool = False

    @property
    def error(self) -> float | None:
        """Relative deviation of the emulated from the predicted value."""
        if self.value is None or not self.predicted:
            return None
        return self.value / self.predicted - 1

    @property
    def is_judged(self) -> bool:
        """True if the row counts as a prediction of the paper's value."""
        return self.verdict in JUDGED

    @property
    def is_null_inside(self) -> bool:
        """True if the null model's value is inside the band."""
        return self.band is not None and self.null is not None and contains(self.band, self.null)

    @property
    def distance(self) -> float | None:
        """Signed distance of the value to the paper's, in per cent."""
        return self._distance(self.value)

    @property
    def null_distance(self) -> float | None:
        """Signed distance of the null model's value to the paper's, in per cent."""
        return self._distance(self.null)

    def _distance(self, value: float | None) -> float | None:
        """Return the distance to the paper's number, or to the nearest bound of words and ranges.

        It is relative to what the paper gives there, or in the row's unit if that is 0: an
        iteration that takes 8 % longer, where the paper says 0, is 8 points away.
        """
        if value is None or self.paper is None or self.band is None:
            return None
        is_number = self.paper[0] == self.paper[1] and not self.words
        low, high = self.paper if is_number else self.band
        for bound, given, side in ((low, self.paper[0], -1), (high, self.paper[1], 1)):
            if bound is not None and side * (value - bound) > 0:
                return 100 * (value - bound) / abs(given) if given else value - bound
        return 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON types."""
        distances = {"distance": self.distance, "null_distance": self.null_distance}
        return {_JSON_KEYS.get(name, name): one for name, one in vars(self).items()} | distances


def verdict(band: Bounds, value: float | None, null: float) -> str:
    """Return the verdict on a value, given the null model's."""
    if value is None:
        return INVALID
    if not contains(band, value):
        return OUTSIDE
    return NULL_FITS if contains(band, null) else REPRODUCED


@dataclass(frozen=True)
class PaperTable:
    """A table.

    Attributes:
        name: name of the table.
        source: place of its values in the paper.
        why: explains its rows outside their bands.
        null_model: the null model in words.
    """

    name: str
    title: str
    source: str
    rows: tuple[PaperRow, ...]
    why: str = ""
    null_model: str = ""

    @property
    def counts(self) -> "Counts":
        """Counts of the judged rows."""
        return Counts.of(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON types."""
        counts = {"counts": vars(self.counts)} if self.counts.rows else {}
        return {**vars(self), **counts, "rows": [row.to_json() for row in self.rows]}


@dataclass(frozen=True)
class Counts:
    """Counts of judged rows.

    Attributes:
        rows: rows that count as predictions.
        inside: those of them inside their bands.
        null_inside: those of them whose null model is inside the band.
        reproduced: those inside their bands whose null model isn't.
        distance: median of their distances to the paper, in per cent; None without rows.
        null_distance: the same of their null models.
    """

    rows: int
    inside: int
    null_inside: int
    reproduced: int
    distance: float | None = None
    null_distance: float | None = None

    @classmethod
    def of(cls, rows: Iterable[PaperRow]) -> Self:
        """Return the counts of the judged rows among these."""
        judged = [row for row in rows if row.is_judged]
        distances = [abs(row.distance) for row in judged if row.distance is not None]
        nulls = [abs(row.null_distance) for row in judged if row.null_distance is not None]
        return cls(
            rows=len(judged),
            inside=sum(row.verdict != OUTSIDE for row in judged),
            null_inside=sum(row.is_null_inside for row in judged),
            reproduced=sum(row.verdict == REPRODUCED for row in judged),
            distance=median(distances) if distances else None,
            null_distance=median(nulls) if nulls else None,
        )
