"""Comparison of fabrics by circuits: equal ones, and full meshes, whose circuits never move."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final, TypeVar

from moefabric.results.model import FabricPrediction, FabricResult, WiringSummary

Entry = TypeVar("Entry", FabricResult, FabricPrediction)
Pairs = tuple[tuple[str, str], ...]
"""The servers that each circuit joins, sorted; which of their NICs it joins makes no difference."""
CircuitUse = Mapping[tuple[str, Hashable], Pairs]
"""Pairs by region and request; a single entry if they never change."""

_ALWAYS: Final = ("", "always")


def joined(ends: Iterable[tuple[str, str]]) -> Pairs:
    """Return the pairs of servers, given the servers or NICs at both ends of each circuit."""
    servers = ((a.partition("/")[0], b.partition("/")[0]) for a, b in ends)
    return tuple(sorted((min(pair), max(pair)) for pair in servers))


def condensed(use: CircuitUse) -> CircuitUse:
    """Return one entry for all regions if the circuits of each region never change."""
    by_region: dict[str, Pairs] = {}
    for (region, _), pairs in use.items():
        if by_region.setdefault(region, pairs) != pairs:
            return use
    return {_ALWAYS: tuple(sorted(pair for pairs in by_region.values() for pair in pairs))}


def measured_use(result: FabricResult) -> CircuitUse:
    """Return the circuits that requests left lit; those at the end if nothing was requested."""
    granted = [change for change in result.reconfigurations if not change.error]
    if not granted:
        return {_ALWAYS: joined(result.circuits)}
    use, requests = dict[tuple[str, Hashable], Pairs](), Counter[str]()
    for change in granted:
        requests[change.region] += 1
        ends = ((a, b) for a, _, b in (name.partition("~") for name in change.circuits_after or ()))
        use[change.region, requests[change.region]] = joined(ends)
    return condensed(use)


def with_circuit_use(entries: Sequence[Entry], uses: Sequence[CircuitUse]) -> list[Entry]:
    """Add to each entry how its circuits compare with others, and whether they are a full mesh.

    Fabrics without circuits are compared with none.
    """
    compared = []
    for entry, use in zip(entries, uses, strict=True):
        pairs = [*zip(entries, uses, strict=True)] if any(use.values()) else []
        rivals = {one.fabric: other for one, other in pairs if one is not entry}
        same = [name for name, other in rivals.items() if other == use]
        others = {
            name: _difference(use, other, entry.wiring)
            for name, other in rivals.items()
            if any(other.values()) and name not in same
        }
        update = {"same_circuits": same, "full_mesh": _is_full_mesh(entry.wiring, use)}
        if others:
            update["other_circuits"] = others
        compared.append(entry.model_copy(update=update))
    return compared


def _difference(use: CircuitUse, other: CircuitUse, wiring: WiringSummary) -> tuple[int, int]:
    """Return in how many of the requests that both have the circuits join other servers."""

    def pairs_of(one: CircuitUse, key: tuple[str, Hashable]) -> Pairs:
        servers = wiring.regions.get(key[0])
        always = one.get(_ALWAYS, ())
        return one.get(key, tuple(p for p in always if servers is None or p[0] in servers))

    changing = [set(one) for one in (use, other) if _ALWAYS not in one]
    keys = set.intersection(*changing) if changing else {_ALWAYS}
    return sum(pairs_of(use, key) != pairs_of(other, key) for key in keys), len(keys)


def _is_full_mesh(wiring: WiringSummary, use: CircuitUse) -> bool:
    """Return whether circuits always join each pair of servers of a region."""
    lit = set(use.get(_ALWAYS, ()))
    regions = map(sorted, wiring.regions.values())
    pairs = (pair for servers in regions for pair in combinations(servers, 2))
    return bool(lit) and lit.issuperset(pairs)
