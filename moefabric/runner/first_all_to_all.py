"""First all-to-all of each layer: exposed time of forward dispatches, measured and predicted.

The demand of a forward dispatch is known only when the dispatch could start.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from moefabric.config.guarded_policy import guarded_policy
from moefabric.core.circuits import CircuitSet
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.runner.forecast import DispatchForecast, ideal_seconds
from moefabric.runner.result_parts import DemandForesight, FirstAllToAll, ResultPart
from moefabric.runner.run_records import CollectiveRun, IterationRun
from moefabric.workload.demand_prediction import GatingPrediction
from moefabric.workload.iteration import Collective, DispatchLight

GatingPredictions = Mapping[int, Sequence[GatingPrediction | None]]
"""The predictions by iteration and layer."""


def predicted_first_all_to_alls(
    iterations: Sequence[Sequence[DispatchForecast]], gating: GatingPredictions | None = None
) -> FirstAllToAll:
    """Return medians over all iterations in the fluid model; empty without first all-to-alls."""
    dispatches = [dispatch for iteration in iterations for dispatch in iteration]
    if not dispatches:
        return FirstAllToAll()
    result = FirstAllToAll(
        predicted_exposed_s=median(dispatch.wait_s + dispatch.seconds for dispatch in dispatches),
        predicted_wait_s=median(dispatch.wait_s for dispatch in dispatches),
        ideal_s=median(dispatch.ideal_s for dispatch in dispatches),
    )
    if gating is None:
        return result
    costs = [
        (_prediction(gating, number, dispatch.layer), dispatch.seconds - dispatch.ideal_s)
        for number, iteration in enumerate(iterations)
        for dispatch in iteration
    ]
    return result.model_copy(update={"foresight": _foresight(costs)})


class PredictionQuality(ResultPart):
    """How well the busiest experts of a layer were predicted (`GatingPrediction`)."""

    k: int
    """Number of busiest experts that count."""
    hits: float
    """Part of them that was predicted."""
    persistence_hits: float
    """Part of them that the layer before predicts."""
    random_hits: float
    """Part of them that random loads predict."""

    @classmethod
    def of(cls, prediction: GatingPrediction | None) -> "PredictionQuality | None":
        """Return the quality of a prediction; None without one."""
        if prediction is None:
            return None
        return cls(
            k=prediction.k,
            hits=prediction.hits,
            persistence_hits=prediction.persistence_hits,
            random_hits=prediction.random_hits,
        )


class FirstDispatch(ResultPart):
    """A region's part of a forward dispatch, in model seconds."""

    iteration: int
    """Number of the iteration, from 0."""
    layer: int
    """Number of the layer, from 0."""
    exposed_s: float
    """From the instant at which it could have started to its last byte."""
    predicted_exposed_s: float
    """Its expectation."""
    waited_s: float
    """Wait for circuits."""
    predicted_wait_s: float
    """Its expectation."""
    ideal_s: float
    """Completion time on the circuits and split for its own demand."""
    lost_s: float
    """What its planned completion time exceeds that by."""
    moved_now: bool
    """Whether new circuits were used while it was under way."""
    prediction: PredictionQuality | None = None
    """Quality of the prediction of its demand; null without one."""


def first_dispatches(
    fabric: Fabric,
    policy: str,
    runs: Sequence[IterationRun],
    gating: GatingPredictions | None = None,
) -> list[FirstDispatch]:
    """Return the first all-to-alls of iterations, with the predictions of their gating."""
    parts = [part for run in runs for part in run.collectives if _is_first(part)]
    wall_s = NS_PER_S * fabric.scale.dilation
    return [
        FirstDispatch(
            iteration=part.iteration,
            layer=part.operation.layer or 0,
            exposed_s=(part.waited_ns + part.end_ns - part.start_ns) / wall_s,
            predicted_exposed_s=part.expected_wait_s + part.predicted_s,
            waited_s=part.waited_ns / wall_s,
            predicted_wait_s=part.expected_wait_s,
            ideal_s=ideal_s,
            lost_s=part.plan.seconds - ideal_s,
            moved_now=part.reconfigured_meanwhile,
            prediction=_prediction(gating or {}, part.iteration, part.operation.layer or 0),
        )
        for part, ideal_s in zip(parts, _ideal_seconds(fabric, policy, parts), strict=True)
    ]


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
    return result.model_copy(update={"foresight": _foresight(costs)})


def _foresight(costs: Sequence[tuple[PredictionQuality | None, float]]) -> DemandForesight:
    """Summarise predictions of dispatches and the model seconds that each of them cost."""
    predicted = [(prediction, cost) for prediction, cost in costs if prediction is not None]
    if not predicted:
        return DemandForesight(
            guessed=0,
            reason="no iteration ended before: circuits stayed as they were, as with reuse",
        )
    predictions = [prediction for prediction, _ in predicted]
    return DemandForesight(
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


def _prediction(gating: GatingPredictions, iteration: int, layer: int) -> PredictionQuality | None:
    layers = gating.get(iteration, ())
    return PredictionQuality.of(layers[layer]) if layer < len(layers) else None


def _is_first(part: CollectiveRun) -> bool:
    return isinstance(part.operation, Collective) and part.operation.is_forward_dispatch


def _ideal_seconds(fabric: Fabric, policy: str, parts: Sequence[CollectiveRun]) -> list[float]:
    """Return the model seconds of each dispatch on the circuits and split for its own demand."""
    chosen = guarded_policy(policy)
    known: dict[int, dict[str, float]] = {}
    seconds = []
    for part in parts:
        operation = part.operation
        assert isinstance(operation, Collective)
        if not chosen.reconfigures and not operation.split_demands:
            seconds.append(part.plan.seconds)
            continue
        if id(operation) not in known:
            moves = chosen.reconfigures
            lit = CircuitSet() if moves else part.circuits
            known[id(operation)] = ideal_seconds(fabric, chosen, operation.demand, lit, moves=moves)
        seconds.append(known[id(operation)].get(part.region, part.plan.seconds))
    return seconds
