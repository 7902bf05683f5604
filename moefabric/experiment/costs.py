"""What the network of each result costs, and how many iterations a dollar of it buys (paper section 7.4)."""

from collections.abc import Sequence
from typing import Any

from moefabric.baseline import baseline
from moefabric.cost import bought, network_usd, performance_per_dollar
from moefabric.errors import SpecError
from moefabric.topology import Fabric

Json = dict[str, Any]


def cost(fabric: Fabric, iteration_s: float | None) -> Json:
    """USD of the fabric's network as part of one of the paper's size, and iterations a second for each of them.

    None, and `why`, where its NICs' rate has no prices. `to_eps` is None until `against_eps`.
    """
    try:
        usd, why = network_usd(bought(fabric), fabric.nic_rate_bps), ""
    except SpecError as fault:
        usd, why = None, str(fault)
    per_dollar = performance_per_dollar(iteration_s, usd) if iteration_s and usd else None
    return {"network_usd": usd, "performance_per_dollar": per_dollar, "to_eps": None, "why": why}


def against_eps(entries: Sequence[Json]) -> None:
    """Put into each entry's cost how much more a dollar buys than a dollar of the run's baseline does; nothing where there is none."""
    base = baseline(entries)
    theirs = base["cost"]["performance_per_dollar"] if base else None
    for entry in entries if theirs else ():
        if mine := entry["cost"]["performance_per_dollar"]:
            entry["cost"]["to_eps"] = mine / theirs
