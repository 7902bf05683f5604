"""Regions of a fabric: its first region by itself, and the intervals of the others."""

from collections.abc import Sequence

from moefabric.report.summary import FabricSummary
from moefabric.results.parts import ServerInterval


def first_region(fabric: FabricSummary) -> FabricSummary:
    """Reduce a fabric to the servers and circuits of its first region."""
    if not fabric.regions:
        return fabric
    servers = next(iter(fabric.regions.values()))
    wiring = fabric.result.wiring.model_copy(update={"servers": len(servers)})
    circuits = circuits_within(fabric, servers)
    return FabricSummary(
        fabric.result.model_copy(update={"wiring": wiring, "circuits": circuits}), fabric.base
    )


def timeline(fabric: FabricSummary) -> list[ServerInterval]:
    """Return the intervals of the first region's servers, and those of each other region as one.

    A region's interval lasts from its first server's start to its last server's end.
    """
    if not fabric.regions:
        return fabric.timeline
    first = next(iter(fabric.regions))
    region_of = {server: name for name, servers in fabric.regions.items() for server in servers}
    intervals: list[ServerInterval] = []
    merged: dict[tuple[str, str, bool, int | None, int], ServerInterval] = {}
    for i in fabric.timeline:
        region = region_of.get(i.server, first)
        if region == first:
            intervals.append(i)
            continue
        key = (region, i.kind, i.backward, i.layer, i.micro_batch)
        other = merged.get(key, i)
        start_s, end_s = min(other.start_s, i.start_s), max(other.end_s, i.end_s)
        merged[key] = i.model_copy(update={"server": region, "start_s": start_s, "end_s": end_s})
    return [*intervals, *merged.values()]


def circuits_within(fabric: FabricSummary, servers: Sequence[str]) -> list[tuple[str, str]]:
    """Return the circuits that begin at some servers."""
    return [ends for ends in fabric.result.circuits if ends[0].split("/")[0] in servers]
