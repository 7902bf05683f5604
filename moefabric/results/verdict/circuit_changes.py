"""Comparison of reconfigurations with demands, choices and times that controllers don't decide.

These are the demand of the layer, the policy's own choice, stored control times and the profile of
the OCS.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.settling import LastLight, last_light
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.planner.waterfill import off_diagonal
from moefabric.results.records.records import IterationRun, ReconfigurationRun, RunFailures
from moefabric.results.verdict.reasons import LabelledError
from moefabric.workload.iterations.iteration import Collective

_LEAST_CONTROL_S: Final = 0.010
"""Least expected control time: 5 ms of a request that moves nothing double on busy cores."""
_ROUNDING: Final = 1e-6


def change_label(change: ReconfigurationRun) -> str:
    """Return the name of a reconfiguration in a verdict's reasons."""
    work, batch = change.operation, change.micro_batch
    place = f"{work.direction} light of layer {work.layer}, iteration {change.iteration}"
    return f"{change.region}: {place}{f', micro-batch {batch}' if batch else ''}"


def wrong_demands(fabric: Fabric, iteration: IterationRun) -> Iterator[str]:
    """Yield the reconfigurations whose controller got the demand of no all-to-all of the layer.

    Predicted demands are not compared, nor those of servers that backups replace, nor bytes that
    stay on a server: phases of an all-to-all have none.
    """
    if iteration.substituted:
        return
    owed = _collective_demands(iteration)
    regions = {region.name: region for region in fabric.regions}
    for change in iteration.reconfigurations:
        work, servers = change.operation, regions[change.region].servers
        demands = owed[work.direction, work.layer, change.micro_batch]
        if change.demand is None or work.predicted or not demands:
            continue
        planned = off_diagonal(change.demand)
        known = (off_diagonal(demand.within(servers)) for demand in demands)
        if not any(np.allclose(planned, array, rtol=_ROUNDING, atol=1) for array in known):
            yield f"{change_label(change)}: its demand is not that of the layer"


def _collective_demands(
    iteration: IterationRun,
) -> defaultdict[tuple[str, int, int], list[DemandMatrix]]:
    """Return the demands of an iteration's all-to-alls by direction, layer and micro-batch."""
    phases = defaultdict[tuple[str, int, int, object], dict[int, DemandMatrix]](dict)
    for run in iteration.collectives:
        work = run.operation
        assert isinstance(work, Collective)
        whole = work.kind, work.demand.servers
        phases[work.direction, work.layer, run.micro_batch, whole][id(work)] = work.demand
    owed = defaultdict[tuple[str, int, int], list[DemandMatrix]](list)
    for (direction, layer, micro_batch, _), demands in phases.items():
        owed[direction, layer, micro_batch].append(DemandMatrix.sum_of(list(demands.values())))
    return owed


def other_circuits(
    fabric: Fabric, changes: Sequence[ReconfigurationRun], failures: RunFailures
) -> Iterator[str]:
    """Yield the reconfigurations to other circuits than the policy's own choice.

    Circuits count by their pairs of servers: NICs of a pair are alike. Circuits without light were
    chosen, too. Failures of the region explain any difference.
    """
    regions = {region.name: region for region in fabric.regions}
    for change in changes:
        if change.chosen is None or change.change.error:
            continue
        lit, dark = change.change.after.circuits, change.change.dark.circuits
        chosen, commanded = _pairs(change.chosen), _pairs(CircuitSet(lit | dark))
        if chosen != commanded and not failures.explain(regions[change.region], change):
            missing, other = ", ".join(chosen - commanded), ", ".join(commanded - chosen)
            yield (
                f"{change_label(change)}: not the circuits that the policy chooses: without "
                f"{missing or 'none'}, with {other or 'no other'}"
            )


def _pairs(circuits: CircuitSet) -> Counter[str]:
    return Counter("~".join(sorted(circuit.pair)) for circuit in circuits)


def control_ratios(changes: Sequence[ReconfigurationRun]) -> Iterator[tuple[str, float]]:
    """Yield region and whether circuits moved, and control times relative to those expected.

    Planning counts as long as the run's own took.
    """
    for change in changes:
        if change.change.error or not change.expected_control_s:
            continue
        moved = change.change.before != change.change.after
        kind = f"{change.region} with requests that {'move' if moved else 'keep'} circuits"
        expected_s = max(_LEAST_CONTROL_S, change.expected_control_s) + change.plan_s
        yield kind, change.change.phases.control_s / expected_s


class DarkTime(NamedTuple):
    """Measured dark time of a reconfiguration, on the wall clock, and the profile's."""

    ocs: str
    iteration: int
    settled_ns: float
    light: LastLight


def dark_times(fabric: Fabric, changes: Sequence[ReconfigurationRun]) -> Iterator[DarkTime]:
    """Yield the dark times of the reconfigurations that lit circuits."""
    regions = {region.name: region for region in fabric.regions}
    for run in changes:
        ocs, change = regions[run.region].ocs, run.change
        new = change.before.transition_to(change.after).setup
        if ocs is None or change.error or not new:
            continue
        light = last_light(ocs, len(new))
        if light.mean_ns:
            settled_ns = change.settled_s * NS_PER_S * fabric.scale.dilation
            yield DarkTime(ocs.name, run.iteration, settled_ns, light)


def dark_time_errors(times: Sequence[DarkTime]) -> Iterator[LabelledError]:
    """Yield how far dark times are outside those that the profile allows."""
    for ocs, iteration, settled_ns, light in times:
        allowed_ns = min(max(settled_ns, light.least_ns), light.most_ns)
        label = f"{ocs}, reconfiguration in iteration {iteration}"
        yield LabelledError(label, settled_ns / allowed_ns - 1)


def dark_time_means(times: Sequence[DarkTime]) -> Iterator[tuple[str, float]]:
    """Yield OCSes whose profile has random times, and errors of dark times against the mean."""
    return ((t.ocs, t.settled_ns / t.light.mean_ns - 1) for t in times if t.light.deviation_ns)


def dark_time_deviations(times: Sequence[DarkTime]) -> Iterator[tuple[str, float]]:
    """Yield the same OCSes, and the standard deviations that these errors should have."""
    return ((t.ocs, t.light.deviation_ns / t.light.mean_ns) for t in times if t.light.deviation_ns)
