"""Comparison of a run's fabrics with its baseline: all-to-all times and performance per dollar.

Performance per dollar is that of section 7.4 of the MixNet paper (arXiv 2501.03905).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from moefabric.core.errors import SpecError
from moefabric.core.network_cost import inventory, network_usd, performance_per_dollar
from moefabric.core.topology import Fabric
from moefabric.results import model as result_model
from moefabric.results.model import CPU_STEAL_LIMIT
from moefabric.results.parts import CollectiveResult

Entry = TypeVar("Entry", result_model.FabricResult, result_model.FabricPrediction)


def baseline(entries: Iterable[Entry]) -> Entry | None:
    """Return the fabric with which the others are compared; None if there is none.

    It is the fabric without circuits (policy `eps`) with the least oversubscription, the first if
    several have the same.
    """
    candidates = (entry for entry in entries if entry.policy == result_model.BASELINE_POLICY)
    return min(candidates, key=lambda entry: entry.wiring.oversubscription, default=None)


def with_ratios(results: Sequence[result_model.FabricResult]) -> list[result_model.FabricResult]:
    """Add to each result the ratios of its all-to-alls to those of the run's baseline.

    A ratio is the median over the all-to-alls that nothing disturbed. Without a baseline the
    results stay as they are.
    """
    base = baseline(results)
    if base is None:
        return list(results)

    all_to_alls = {
        result.fabric: [c for c in joined_phases(result.collectives) if _undisturbed(c)]
        for result in results
    }

    def median_ratio(
        result: result_model.FabricResult, seconds: Callable[[CollectiveResult], float]
    ) -> float | None:
        base_s = {collective_key(c): seconds(c) for c in all_to_alls[base.fabric]}
        ratios = [
            seconds(c) / base_s[collective_key(c)]
            for c in all_to_alls[result.fabric]
            if base_s.get(collective_key(c))
        ]
        return float(np.median(ratios)) if ratios else None

    return [
        result.model_copy(
            update={
                "ratios": result_model.BaselineRatios(
                    measured_vs_eps=median_ratio(result, lambda c: c.measured_s or 0.0),
                    predicted_vs_eps=median_ratio(result, lambda c: c.predicted_s or 0.0),
                )
            }
        )
        for result in results
    ]


def _undisturbed(collective: CollectiveResult) -> bool:
    return collective.cpu_steal <= CPU_STEAL_LIMIT and not collective.failures


def joined_phases(collectives: Iterable[CollectiveResult]) -> list[CollectiveResult]:
    """Return collectives with the phases of each all-to-all joined to one.

    Its times are the sums of the phases and of the pauses before them.
    """
    joined: list[CollectiveResult] = []
    positions: dict[tuple[object, ...], int] = {}
    for collective in collectives:
        if collective.phases == 1 and not collective.pause_s:
            joined.append(collective)
            continue
        key = collective_key(collective)
        if key in positions:
            before = joined[positions[key]]
            joined[positions[key]] = _joined(before, _with_pause(collective))
        else:
            positions[key] = len(joined)
            joined.append(_with_pause(collective))
    return joined


_TIMES: Final = ("measured_s", "predicted_s", "planned_s")
_AMOUNTS: Final = (
    *_TIMES,
    "bytes",
    "bytes_by_light",
    "bytes_by_eps",
    "bytes_planned_by_light",
    "bytes_planned_by_eps",
    "bytes_planned_by_spines",
    "retransmits",
    "misrouted",
    "moved_by_failure",
    "failures",
    "dark_s",
    "harness_s",
)


def _with_pause(phase: CollectiveResult) -> CollectiveResult:
    """Return a phase whose times include the pause before it."""
    times = {name: getattr(phase, name) for name in _TIMES}
    longer = {name: phase.pause_s + s for name, s in times.items() if s is not None}
    whole = {"phase": 0, "phases": 1, "pause_s": 0.0, "reported_error": None}
    return phase.model_copy(update={**longer, **whole})


def _joined(before: CollectiveResult, after: CollectiveResult) -> CollectiveResult:
    """Return two phases as one: amounts are added, and unknown if one of them is."""
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in _AMOUNTS}
    sums = {name: None if None in (a, b) else a + b for name, (a, b) in pairs.items()}
    return before.model_copy(update={**sums, "cpu_steal": max(before.cpu_steal, after.cpu_steal)})


def collective_key(collective: CollectiveResult) -> tuple[object, ...]:
    """Return the key of a collective, which is equal in every fabric and run."""
    c = collective
    return c.region, c.iteration, c.layer, c.kind, c.direction, c.micro_batch


def network_cost(
    fabric: Fabric, iteration_s: float | None, servers: int | None = None
) -> result_model.NetworkCost:
    """Price a fabric's network as a part of a network of the paper's size.

    The cost has a reason instead of figures if there are no prices for the rate of the NICs.

    Args:
        fabric: The fabric.
        iteration_s: Model seconds of an iteration.
        servers: Servers of the cluster for which the fabric stands; by default its own.
    """
    priced = inventory(fabric)
    if servers is not None:
        priced = replace(priced, servers=servers)
    try:
        usd, why = network_usd(priced, _priced_rate_bps(fabric)), ""
    except SpecError as fault:
        usd, why = None, str(fault)
    per_dollar = performance_per_dollar(iteration_s, usd) if iteration_s and usd else None
    return result_model.NetworkCost(
        network_usd=usd, performance_per_dollar=per_dollar, perf_per_dollar_vs_eps=None, why=why
    )


def _priced_rate_bps(fabric: Fabric) -> float:
    """Return the rate of all NICs; raises SpecError if it isn't one."""
    if len(rates_bps := {*fabric.rates_bps}) == 1:
        return rates_bps.pop()
    raise SpecError([("nic_rate", "networks have prices if all NICs have one rate")])


def with_cost_ratios(entries: Sequence[Entry]) -> list[Entry]:
    """Add to each entry its performance per dollar relative to the baseline's, if there is one."""
    base = baseline(entries)
    base_performance = base.cost.performance_per_dollar if base else None
    if not base_performance:
        return list(entries)

    def compared(cost: result_model.NetworkCost) -> result_model.NetworkCost:
        performance = cost.performance_per_dollar
        ratio = performance / base_performance if performance else None
        return cost.model_copy(update={"perf_per_dollar_vs_eps": ratio})

    return [entry.model_copy(update={"cost": compared(entry.cost)}) for entry in entries]
