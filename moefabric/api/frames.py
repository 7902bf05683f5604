"""Tables of results as pandas frames. pandas is optional: the extra `frames` installs it."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from moefabric.core.errors import SpecError, UnsupportedError
from moefabric.report.summary import COLUMNS, FabricSummary, summaries
from moefabric.results.model import ExperimentPrediction, RunResult

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

_PARTS: Final = ("iterations", "collectives", "transfers", "reconfigurations", "flows", "failures")
FRAMES: Final = ("fabrics", *_PARTS)
"""Kinds of frames of a run."""


def run_frame(run: RunResult, kind: str) -> "pd.DataFrame":
    """Return one kind of rows of a run, with the fabric and its policy as the first columns.

    Raises:
        SpecError: If there is no such kind, or the run kept no flows.
        UnsupportedError: If pandas is missing.
    """
    if kind not in FRAMES:
        raise SpecError([("to_frame", f"{kind!r} is not one of {', '.join(FRAMES)}")])
    if kind == "fabrics":
        return frame(_figures(fabric) for fabric in summaries(run))
    if kind == "flows" and not any(result.flows for result in run.results):
        message = "the run kept no flows: run it with `flows=True`, or `moefabric run --flows`"
        raise SpecError([("to_frame", message)])
    return frame(_rows(run, kind))


def prediction_frame(prediction: ExperimentPrediction) -> "pd.DataFrame":
    """Return the figures of each fabric's prediction.

    Raises:
        UnsupportedError: If pandas is missing.
    """
    figures = {"wiring", "cost", "first_all_to_all"}
    return frame(
        entry.model_dump(mode="json", exclude=figures)
        | entry.cost.model_dump(mode="json", exclude={"why"})
        for entry in prediction.fabrics
    )


def frame(rows: Iterable[Row]) -> "pd.DataFrame":
    """Return rows as a frame.

    Raises:
        UnsupportedError: If pandas is missing.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise UnsupportedError(
            "frames need pandas: install moefabric[frames], or pandas itself"
        ) from error
    return pd.DataFrame(list(rows))


def _figures(fabric: FabricSummary) -> Row:
    names = {"fabric": fabric.result.fabric, "policy": fabric.result.policy}
    figures = {name: fabric[name] for name in COLUMNS}
    return names | {"verdict": str(fabric.verdict)} | figures


def _rows(run: RunResult, kind: str) -> Iterator[Row]:
    for result in run.results:
        for part in getattr(result, kind):
            names = {"fabric": result.fabric, "policy": result.policy}
            yield names | part.model_dump(mode="json", by_alias=True)
