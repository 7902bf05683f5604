"""First all-to-alls: what each forward dispatch was exposed to, since its demand is known only when it could start, and what a better guess would have saved."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from controller.planner.plan import policy_named
from moefabric.circuits import CircuitSet
from moefabric.experiment.foresight import Guess
from moefabric.experiment.runs import CollectiveRun, IterationRun
from moefabric.experiment.walk import FirstSeen, Walk
from moefabric.iteration import Collective, First
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

Guesses = Mapping[int, Sequence[Guess | None]]
"""What was foreseen, by iteration and layer."""


def first_foretold(
    iterations: Sequence[Sequence[FirstSeen]], guesses: Guesses | None = None
) -> dict[str, Any]:
    """Medians over the first all-to-alls of all iterations, by the fluid model, and how well they were foreseen; empty where there are none.

    `ideal_s` is with the right light, and no wait for it.
    """
    seen = [each for iteration in iterations for each in iteration]
    if not seen:
        return {}
    told: dict[str, Any] = {
        "predicted_exposed_s": median(each.wait_s + each.seconds for each in seen),
        "predicted_wait_s": median(each.wait_s for each in seen),
        "ideal_s": median(each.ideal_s for each in seen),
    }
    if guesses is not None:
        costs = [
            (_of(guesses, number, each.layer), each.seconds - each.ideal_s)
            for number, iteration in enumerate(iterations)
            for each in iteration
        ]
        told["foresight"] = _foresight(costs)
    return told


def first_told(
    fabric: Fabric, policy: str, first: First, runs: Sequence[IterationRun], guesses: Guesses
) -> dict[str, Any]:
    """What the first all-to-alls of a run were exposed to, medians in model seconds, measured and predicted; and how well they were foreseen."""
    parts = [part for run in runs for part in run.collectives if _first(part)]
    if not parts:
        return {}
    wall_s = NS_PER_S * fabric.scale.dilation
    ideal = _ideal(fabric, policy, parts)
    told: dict[str, Any] = {
        "policy": first,
        "count": len(parts),
        "exposed_s": median((p.waited_ns + p.end_ns - p.start_ns) / wall_s for p in parts),
        "predicted_exposed_s": median(p.expected_wait_s + p.prediction.seconds for p in parts),
        "waited_s": median(p.waited_ns / wall_s for p in parts),
        "predicted_wait_s": median(p.expected_wait_s for p in parts),
        "ideal_s": median(ideal),
        "moved_now": sum(p.moved_now for p in parts),
    }
    if first == "predict":
        costs = zip((guessed(part, guesses) for part in parts), _above(parts, ideal), strict=True)
        told["foresight"] = _foresight(list(costs))
    return told


def _above(parts: Sequence[CollectiveRun], ideal: Sequence[float]) -> list[float]:
    return [part.prediction.seconds - needed for part, needed in zip(parts, ideal, strict=True)]


def _foresight(costs: Sequence[tuple[Guess | None, float]]) -> dict[str, Any]:
    """How many were foreseen, how much of their busiest experts, and what the wrong light cost: model seconds above the right one's, on average."""
    foreseen = [(guess, cost) for guess, cost in costs if guess is not None]
    if not foreseen:
        return {"guessed": 0, "reason": "no iteration was over before: light stayed as it was, as with reuse"}
    made = [guess for guess, _ in foreseen]
    return {
        "guessed": len(foreseen),
        "unguessed": len(costs) - len(foreseen),
        "reason": "before the first iteration is over, nothing is learnt: light stays as it is, as with reuse",
        "top_k": made[0].k,
        "top_k_hits": fmean(guess.hits for guess in made),
        "unchanged_hits": fmean(guess.unchanged_hits for guess in made),
        "random_hits": fmean(guess.random_hits for guess in made),
        "wrong_guess_s": fmean(cost for _, cost in foreseen),
        "worst_guess_s": max(cost for _, cost in foreseen),
    }


def guessed(part: CollectiveRun, guesses: Guesses) -> Guess | None:
    """What was foreseen of this all-to-all, if it is a first one and anything was."""
    if not _first(part):
        return None
    assert isinstance(part.operation, Collective)
    return _of(guesses, part.iteration, part.operation.layer)


def _of(guesses: Guesses, iteration: int, layer: int) -> Guess | None:
    mine = guesses.get(iteration, ())
    return mine[layer] if layer < len(mine) else None


def _first(part: CollectiveRun) -> bool:
    return isinstance(part.operation, Collective) and part.operation.first


def _ideal(fabric: Fabric, policy: str, parts: Sequence[CollectiveRun]) -> list[float]:
    """What each would have needed with the light that its demand deserves, lit in time."""
    chosen = policy_named(policy)
    if not chosen.moves:
        return [part.prediction.seconds for part in parts]
    walk, known = Walk(fabric, chosen, CircuitSet(), moves=True), dict[int, dict[str, float]]()
    made = []
    for part in parts:
        operation = part.operation
        assert isinstance(operation, Collective)
        if id(operation) not in known:
            known[id(operation)] = walk.ideal(operation)
        made.append(known[id(operation)].get(part.region, part.prediction.seconds))
    return made
