"""Circuits as users name them, and the outcome of a change of circuits."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric, Region
from moefabric.core.transition import ReconfigurationPhases
from moefabric.planner.nic_assignment import assign_nics
from moefabric.results.parts import Json, ResultPart


class LightChange(ResultPart):
    """The outcome of a request for circuits."""

    circuits_before: list[str]
    """Circuits that carried traffic before the request."""
    circuits_after: list[str]
    """Circuits that carry traffic now."""
    dark: list[str]
    """Circuits that were commanded but carry no light; their pairs use the EPS."""
    phases: ReconfigurationPhases
    """Wall seconds of each phase."""
    plan: Json | None = None
    """The plan for the demand; None if circuits were given."""
    policy_fault: str = ""
    """Why a policy of another package failed, so that no circuits were lit."""


def region_of_circuits(fabric: Fabric, names: Sequence[str]) -> Region:
    """Return the region of circuits such as `s0/o0~s1/o0`, or of pairs of servers.

    Raises:
        SpecError: If a server is unknown, or the circuits belong to several regions.
    """
    servers = [end.partition("/")[0] for name in names for end in name.split("~")]
    if unknown := [server for server in servers if server not in fabric.server_index]:
        known = ", ".join(fabric.servers)
        raise SpecError([(" ".join(names), f"{unknown[0]!r} is not one of the servers {known}")])
    regions = list(dict.fromkeys(fabric.region_of[server] for server in servers))
    if len(regions) > 1:
        found = ", ".join(region.name for region in regions)
        message = f"the servers are in the regions {found}: no circuit leaves a region, and one"
        raise SpecError([(" ".join(names), f"{message} request changes one region")])
    return regions[0]


def named_circuits(
    fabric: Fabric, region: Region, names: Sequence[str], lit: Sequence[str]
) -> list[str]:
    """Return circuits by the names of their NICs.

    Args:
        fabric: The fabric.
        region: The region of the circuits.
        names: Circuits such as `s0/o0~s1/o0`, which stay as they are, or pairs of servers such as
            `s0~s1`, once for each circuit.
        lit: Circuits that are lit. Pairs of servers keep theirs.

    Raises:
        SpecError: If both kinds of names are mixed, or a server lacks free NICs.
    """
    pairs = [name for name in names if "/" not in name]
    if not pairs:
        return list(names)
    if len(pairs) < len(names):
        raise SpecError([(pairs[0], "name the NICs of all circuits, or of none")])
    index = {server: i for i, server in enumerate(region.servers)}
    counts = np.zeros((len(index), len(index)), dtype=int)
    for (a, b), count in Counter(tuple(pair.split("~")) for pair in pairs).items():
        if a == b or a not in index or b not in index:
            raise SpecError([(f"{a}~{b}", f"two different servers of {region.name} are needed")])
        counts[index[a], index[b]] += count
        counts[index[b], index[a]] += count
    try:
        current = CircuitSet.of(Circuit.parse(name) for name in lit)
        return [str(circuit) for circuit in assign_nics(fabric, region, counts, current)]
    except ValueError as error:
        raise SpecError([(" ".join(names), str(error))]) from error
