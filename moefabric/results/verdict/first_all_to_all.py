"""First all-to-all of each layer: the exposed time of forward dispatches and its medians.

The demand of a forward dispatch is known only when the dispatch could start.
"""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any, Final

from moefabric.results.parts import DemandPrediction, FirstAllToAll, ResultPart
from moefabric.results.records.records import IterationRun
from moefabric.workload.iterations.iteration import DispatchLight


class GatingPredictionQuality(ResultPart):
    """Quality of a layer's predicted gating (`GatingPrediction`)."""

    k: int
    """Number of busiest experts that count."""
    hits: float
    """Part of them that was predicted."""
    persistence_hits: float
    """Part of them that the layer before predicts."""
    random_hits: float
    """Part of them that random loads predict."""


class FirstDispatch(ResultPart):
    """A region's part of a forward dispatch, in model seconds."""

    iteration: int
    """Number of the iteration, from 0."""
    layer: int
    """Number of the layer, from 0."""
    exposed_s: float
    """Time from the instant at which it could have started to its last byte."""
    predicted_exposed_s: float
    """Predicted exposed time."""
    waited_s: float
    """Wait for circuits."""
    predicted_wait_s: float
    """Predicted wait."""
    ideal_s: float
    """Completion time on the circuits and split for its own demand."""
    lost_s: float
    """Difference of the planned completion time and `ideal_s`."""
    moved_now: bool
    """Whether new circuits were used while it was under way."""
    prediction: GatingPredictionQuality | None = None
    """Quality of the prediction of its demand; null without one."""


FirstDispatches = Callable[[Sequence[IterationRun]], list[FirstDispatch]]
"""Returns the first all-to-alls of iterations."""


PREDICTED: Final = ("predicted_exposed_s", "predicted_wait_s", "ideal_s")
"""Fields that predictions have, too."""


def medians(dispatches: Iterable[object], *fields: str) -> dict[str, Any]:
    """Return the medians of some fields."""
    listed = list(dispatches)
    return {name: median(getattr(one, name) for one in listed) for name in fields}


def measured_first_all_to_alls(
    dispatch_light: DispatchLight, dispatches: Sequence[FirstDispatch]
) -> FirstAllToAll:
    """Return medians over a run, measured and predicted; empty without first all-to-alls."""
    if not dispatches:
        return FirstAllToAll()
    result = FirstAllToAll(
        policy=dispatch_light,
        count=len(dispatches),
        **medians(dispatches, *PREDICTED, "exposed_s", "waited_s"),
        moved_now=sum(one.moved_now for one in dispatches),
    )
    if dispatch_light != "predict":
        return result
    costs = [(one.prediction, one.lost_s) for one in dispatches]
    return result.model_copy(update={"foresight": demand_prediction(costs)})


def demand_prediction(
    costs: Sequence[tuple[GatingPredictionQuality | None, float]],
) -> DemandPrediction:
    """Summarise predictions of dispatches and the model seconds that each of them cost."""
    predicted = [(prediction, cost_s) for prediction, cost_s in costs if prediction is not None]
    if not predicted:
        reason = "no iteration ended before: circuits stayed as they were, as with reuse"
        return DemandPrediction(guessed=0, reason=reason)
    predictions, costs_s = zip(*predicted, strict=True)
    return DemandPrediction(
        guessed=len(predicted),
        unguessed=len(costs) - len(predicted),
        reason="the first iteration has no predictions: circuits stay as they are, as with reuse",
        top_k=predictions[0].k,
        top_k_hits=fmean(prediction.hits for prediction in predictions),
        unchanged_hits=fmean(prediction.persistence_hits for prediction in predictions),
        random_hits=fmean(prediction.random_hits for prediction in predictions),
        wrong_guess_s=fmean(costs_s),
        worst_guess_s=max(costs_s),
    )
