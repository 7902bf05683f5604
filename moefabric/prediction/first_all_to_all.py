"""First all-to-all of each layer: exposed time of forward dispatches, measured and predicted.

The demand of a forward dispatch is known only when the dispatch could start.
"""

from collections.abc import Mapping, Sequence

from moefabric.config.guarded_policy import guarded_policy
from moefabric.core.circuits import CircuitSet
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.prediction.job_prediction import DispatchPrediction, ideal_seconds
from moefabric.results.parts import FirstAllToAll
from moefabric.results.records.records import CollectiveRun, IterationRun
from moefabric.results.verdict import first_all_to_all
from moefabric.workload.gating.copilot import GatingPrediction
from moefabric.workload.iterations.iteration import Collective

GatingPredictions = Mapping[int, Sequence[GatingPrediction | None]]
"""The predictions by iteration and layer."""


def predicted_first_all_to_alls(
    iterations: Sequence[Sequence[DispatchPrediction]], gating: GatingPredictions | None = None
) -> FirstAllToAll:
    """Return medians over all iterations in the fluid model; empty without first all-to-alls."""
    dispatches = [dispatch for iteration in iterations for dispatch in iteration]
    if not dispatches:
        return FirstAllToAll()
    result = FirstAllToAll(**first_all_to_all.medians(dispatches, *first_all_to_all.PREDICTED))
    if gating is None:
        return result
    costs = [
        (_prediction(gating, number, dispatch.layer), dispatch.lost_s)
        for number, iteration in enumerate(iterations)
        for dispatch in iteration
    ]
    return result.model_copy(update={"foresight": first_all_to_all.demand_prediction(costs)})


def first_dispatches(
    fabric: Fabric,
    policy: str,
    runs: Sequence[IterationRun],
    gating: GatingPredictions | None = None,
) -> list[first_all_to_all.FirstDispatch]:
    """Return the first all-to-alls of iterations, with the predictions of their gating."""
    parts = [part for run in runs for part in run.collectives if _is_first(part)]
    wall_s = NS_PER_S * fabric.scale.dilation
    return [
        first_all_to_all.FirstDispatch(
            iteration=part.iteration,
            layer=part.operation.layer or 0,
            exposed_s=(part.waited_ns + part.end_ns - part.start_ns) / wall_s + part.server.seconds,
            predicted_exposed_s=part.predicted_wait_s + part.predicted_s + part.server.seconds,
            waited_s=part.waited_ns / wall_s,
            predicted_wait_s=part.predicted_wait_s,
            ideal_s=ideal_s,
            lost_s=part.plan.seconds + part.server.seconds - ideal_s,
            moved_now=part.reconfigured_meanwhile,
            prediction=_prediction(gating or {}, part.iteration, part.operation.layer or 0),
        )
        for part, ideal_s in zip(parts, _ideal_seconds(fabric, policy, parts), strict=True)
    ]


def _prediction(
    gating: GatingPredictions, iteration: int, layer: int
) -> first_all_to_all.GatingPredictionQuality | None:
    prediction = dict(enumerate(gating.get(iteration, ()))).get(layer)
    if prediction is None:
        return None
    return first_all_to_all.GatingPredictionQuality.model_validate(prediction, from_attributes=True)


def _is_first(part: CollectiveRun) -> bool:
    return isinstance(part.operation, Collective) and part.operation.is_forward_dispatch


def _ideal_seconds(fabric: Fabric, policy: str, parts: Sequence[CollectiveRun]) -> list[float]:
    """Return the model seconds of each dispatch on the circuits and split for its own demand."""
    chosen = guarded_policy(policy)
    moves, known = chosen.reconfigures, dict[int, dict[str, float]]()
    seconds = []
    for part in parts:
        operation, ideal_s = part.operation, dict[str, float]()
        assert isinstance(operation, Collective)
        if moves or operation.split_demands:
            if id(operation) not in known:
                lit = CircuitSet() if moves else part.circuits
                known[id(operation)] = ideal_seconds(fabric, chosen, operation, lit, moves=moves)
            ideal_s = known[id(operation)]
        seconds.append(ideal_s.get(part.region, part.plan.seconds + part.server.seconds))
    return seconds
