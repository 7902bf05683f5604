"""Comparison of a run's fabrics with its baseline: all-to-all times and performance per dollar.

Performance per dollar is that of section 7.4 of the MixNet paper (arXiv 2501.03905).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, Final, TypeVar

from moefabric.core.errors import SpecError
from moefabric.core.network_cost import inventory, network_usd, performance_per_dollar
from moefabric.core.topology import Fabric
from moefabric.results import model
from moefabric.results.model import CPU_STEAL_LIMIT, FabricResult
from moefabric.results.parts import CollectiveResult
from moefabric.results.statistics import median_ratio

Entry = TypeVar("Entry", FabricResult, model.FabricPrediction)
Key = tuple[object, ...]
"""Key of a collective."""


def baseline(entries: Iterable[Entry]) -> Entry | None:
    """Return the fabric with which the others are compared; None if there is none.

    It is the fabric without circuits (policy `eps`) with the least oversubscription, the first if
    several have the same.
    """
    candidates = (entry for entry in entries if entry.policy == model.BASELINE_POLICY)
    return min(candidates, key=lambda entry: entry.wiring.oversubscription, default=None)


def with_ratios(results: Sequence[FabricResult]) -> list[FabricResult]:
    """Add to each result the ratios of its all-to-alls to those of the run's baseline.

    A ratio is the median over the all-to-alls that nothing disturbed. Invalid results have none.
    Without a valid baseline the results stay as they are.
    """
    base = baseline(results)
    if base is None or is_invalid(base):
        return list(results)

    base_s, compared = _undisturbed_s(base), []
    for result in results:
        if is_invalid(result):
            compared.append(result)
            continue
        own_s = _undisturbed_s(result)
        measured, predicted = map(median_ratio, own_s, base_s)
        update = model.BaselineRatios(measured_vs_eps=measured, predicted_vs_eps=predicted)
        compared.append(result.model_copy(update={"ratios": update}))
    return compared


def is_invalid(entry: FabricResult | model.FabricPrediction) -> bool:
    """Return whether the figures of an entry can't be trusted.

    Measurements can't if their verdict is `invalid`, predictions if a policy failed.
    """
    if isinstance(entry, FabricResult):
        return entry.fidelity.verdict is model.Verdict.INVALID
    return bool(entry.policy_faults)


def _undisturbed_s(result: FabricResult) -> tuple[dict[Key, float], dict[Key, float]]:
    """Return measured and predicted times of the all-to-alls that nothing disturbed, by key."""
    joined = joined_phases(result.collectives)
    calm = [c for c in joined if c.cpu_steal <= CPU_STEAL_LIMIT and not c.failures]
    measured_s = {collective_key(c): c.measured_s for c in calm}
    return measured_s, {collective_key(c): c.predicted_s or 0.0 for c in calm}


def joined_phases(collectives: Iterable[CollectiveResult]) -> list[CollectiveResult]:
    """Return collectives with the phases of each all-to-all joined to one.

    Its times are the sums of the phases and of the pauses before them.
    """
    groups: dict[object, list[CollectiveResult]] = {}
    for number, c in enumerate(collectives):
        is_whole = c.phases == 1 and not c.pause_s
        groups.setdefault(number if is_whole else collective_key(c), []).append(c)
    return [_joined(phases) for phases in groups.values()]


_TIMES: Final = ("measured_s", "predicted_s", "planned_s")
_AMOUNTS: Final = (
    *_TIMES, "bytes", "bytes_by_light", "bytes_by_eps", "bytes_planned_by_light",
    "bytes_planned_by_eps", "bytes_planned_by_spines", "retransmits", "misrouted",
    "moved_by_failure", "failures", "dark_s", "harness_s",
)  # fmt: skip


def _joined(phases: Sequence[CollectiveResult]) -> CollectiveResult:
    """Return phases as one: amounts are added, and unknown if one of them is."""
    first = phases[0]
    if first.phases == 1 and not first.pause_s:
        return first
    sums: dict[str, Any] = {"cpu_steal": max(phase.cpu_steal for phase in phases)}
    for name in _AMOUNTS:
        values = [getattr(phase, name) for phase in phases]
        if name in _TIMES:
            pauses = [phase.pause_s for phase in phases]
            values = [None if v is None else v + p for v, p in zip(values, pauses, strict=True)]
        sums[name] = None if None in values else reduce(add, values)
    whole = {"phase": 0, "phases": 1, "pause_s": 0.0, "reported_error": None}
    return first.model_copy(update=sums | whole)


def collective_key(collective: CollectiveResult) -> Key:
    """Return the key of a collective, which is equal in every fabric and run."""
    c = collective
    return c.region, c.iteration, c.layer, c.kind, c.direction, c.micro_batch


def network_cost(
    fabric: Fabric, iteration_s: float | None, servers: int | None = None
) -> model.NetworkCost:
    """Price a fabric's network as a part of a network of the paper's size.

    The cost has a reason instead of figures if there are no prices for the rate of the NICs.

    Args:
        iteration_s: Model seconds of an iteration.
        servers: Servers of the cluster for which the fabric stands; by default its own.
    """
    priced = inventory(fabric)
    if servers is not None:
        priced = replace(priced, servers=servers)
    usd, why = None, "nic_rate: networks have prices if all NICs have one rate"
    rates_bps = {*fabric.rates_bps}
    if len(rates_bps) == 1:
        try:
            usd, why = network_usd(priced, rates_bps.pop()), ""
        except SpecError as error:
            why = str(error)
    per_dollar = performance_per_dollar(iteration_s, usd) if iteration_s and usd else None
    return model.NetworkCost(
        network_usd=usd, performance_per_dollar=per_dollar, perf_per_dollar_vs_eps=None, why=why
    )


def with_cost_ratios(entries: Sequence[Entry]) -> list[Entry]:
    """Add to each entry its performance per dollar relative to the baseline's, if there is one.

    Invalid results have no ratio, and none is one to an invalid baseline.
    """
    base = baseline(entries)
    base_performance = base.cost.performance_per_dollar if base else None
    if base is None or not base_performance or is_invalid(base):
        return list(entries)

    compared = []
    for entry in entries:
        performance = None if is_invalid(entry) else entry.cost.performance_per_dollar
        ratio = performance / base_performance if performance else None
        cost = entry.cost.model_copy(update={"perf_per_dollar_vs_eps": ratio})
        compared.append(entry.model_copy(update={"cost": cost}))
    return compared
