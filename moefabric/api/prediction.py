"""Predictions of experiments; as in results, fabrics are found by name and shown as frames.

Frames need pandas, which is optional: the extra `frames` installs it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from moefabric.core.errors import SpecError
from moefabric.results import model
from moefabric.runtime.missing_package import missing_package

if TYPE_CHECKING:
    import pandas as pd

Entry = TypeVar("Entry", model.FabricResult, model.FabricPrediction)
Row = dict[str, Any]


class Prediction(model.ExperimentPrediction):
    """The fluid model's prediction of each fabric of an experiment; `fabrics` has the values."""

    @classmethod
    def of(cls, prediction: model.ExperimentPrediction) -> Self:
        """Return the prediction with the methods of this class."""
        return cls.model_construct(prediction.model_fields_set, **dict(prediction))

    def __repr__(self) -> str:
        times = (f"{entry.fabric} {entry.iteration_s:.4g} s" for entry in self.fabrics)
        return f"Prediction({self.experiment!r}: {', '.join(times)})"

    __str__ = __repr__

    def __getitem__(self, fabric: str) -> model.FabricPrediction:
        """Return the prediction of the fabric with this name."""
        return named(self.fabrics, fabric)

    def to_frame(self) -> "pd.DataFrame":
        """Return a row for each fabric. Needs pandas."""
        figures = {"wiring", "cost", "first_all_to_all"}
        return frame(
            entry.model_dump(mode="json", exclude=figures)
            | entry.cost.model_dump(mode="json", exclude={"why"})
            for entry in self.fabrics
        )

    def _repr_html_(self) -> str:
        from moefabric.report import run_tables
        from moefabric.report.tables import html_table

        return str(html_table(run_tables.prediction(self)))


def named(entries: Sequence[Entry], name: str) -> Entry:
    """Return the entry of the fabric with this name.

    Raises:
        SpecError: If there is none.
    """
    for entry in entries:
        if entry.fabric == name:
            return entry
    known = ", ".join(entry.fabric for entry in entries)
    raise SpecError([("", f"{name!r} is not one of the fabrics {known}")])


def frame(rows: Iterable[Row]) -> "pd.DataFrame":
    """Return rows as a frame.

    Raises:
        UnsupportedError: If pandas is missing.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise missing_package("a frame", "pandas") from error
    return pd.DataFrame(list(rows))
