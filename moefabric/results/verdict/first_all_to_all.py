"""First all-to-all of each layer: the exposed time of forward dispatches and its medians.

The demand of a forward dispatch is known only when the dispatch could start.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, median

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
    """From the instant at which it could have started to its last byte."""
    predicted_exposed_s: float
    """Its prediction."""
    waited_s: float
    """Wait for circuits."""
    predicted_wait_s: float
    """Its prediction."""
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


def measured_first_all_to_alls(
    dispatch_light: DispatchLight, dispatches: Sequence[FirstDispatch]
) -> FirstAllToAll:
    """Return medians over a run, measured and predicted; empty without first all-to-alls."""
    if not dispatches:
        return FirstAllToAll()
    result = FirstAllToAll(
        policy=dispatch_light,
        count=len(dispatches),
        exposed_s=median(one.exposed_s for one in dispatches),
        predicted_exposed_s=median(one.predicted_exposed_s for one in dispatches),
        waited_s=median(one.waited_s for one in dispatches),
        predicted_wait_s=median(one.predicted_wait_s for one in dispatches),
        ideal_s=median(one.ideal_s for one in dispatches),
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
    predicted = [(prediction, cost) for prediction, cost in costs if prediction is not None]
    if not predicted:
        return DemandPrediction(
            guessed=0,
            reason="no iteration ended before: circuits stayed as they were, as with reuse",
        )
    predictions = [prediction for prediction, _ in predicted]
    return DemandPrediction(
        guessed=len(predicted),
        unguessed=len(costs) - len(predicted),
        reason="the first iteration has no predictions: circuits stay as they are, as with reuse",
        top_k=predictions[0].k,
        top_k_hits=fmean(prediction.hits for prediction in predictions),
        unchanged_hits=fmean(prediction.persistence_hits for prediction in predictions),
        random_hits=fmean(prediction.random_hits for prediction in predictions),
        wrong_guess_s=fmean(cost for _, cost in predicted),
        worst_guess_s=max(cost for _, cost in predicted),
    )
