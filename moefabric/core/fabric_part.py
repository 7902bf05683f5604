"""Cuts a part out of a cluster, as a fabric: whole regions, and single servers of other regions.

Servers and regions keep their names, and each server keeps its leaf, its spines and the rates of
its links. A region with only some of its servers is marked as modelled and has no OCS. Addresses,
switches and ports are numbered within the part.
"""

from collections.abc import Collection
from dataclasses import replace

from moefabric.core.topology import Fabric, Region


def fabric_part(cluster: Fabric, name: str, emulated: Collection[str], peers: set[str]) -> Fabric:
    """Return a part of a cluster.

    Args:
        name: Name of the part.
        emulated: Names of the regions that are whole.
        peers: Servers of other regions that belong to the part.
    """
    regions = list[Region]()
    for region in cluster.regions:
        if region.name in emulated:
            regions.append(replace(region, index=len(regions)))
        elif servers := tuple(server for server in region.servers if server in peers):
            regions.append(
                replace(region, index=len(regions), servers=servers, ocs=None, modelled=True)
            )
    members = {server for region in regions for server in region.servers}
    sizes = (sum(server in members for server in pod) for pod in cluster.eps_wiring.pods)
    pods = tuple(size for size in sizes if size)
    return replace(
        cluster,
        name=name,
        regions=tuple(regions),
        eps=replace(cluster.eps, pods=pods) if cluster.eps is not None else None,
        numbers=tuple(cluster.server_number[s] for r in regions for s in r.servers),
    )
