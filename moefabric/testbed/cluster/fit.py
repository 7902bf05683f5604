"""Placement of a fabric's parts on the nodes of a cluster, each part on one node.

Ray chooses the nodes, and waits without end where parts don't fit. So `fit` checks that before,
with the rules of Ray's placement strategies (Ray documentation, "Placement Groups").
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from moefabric.core.errors import UnsupportedError
from moefabric.core.machines import Strategy
from moefabric.core.resource_needs import ResourceNeeds, total_needs

_REMEDY = "lower the scale or add a node"


@dataclass(frozen=True)
class ClusterNode:
    """A node of a cluster.

    Attributes:
        name: Its host name, as users know it.
        node_id: Its identity in the cluster.
        address: Its IPv4 address in the cluster.
        free: What no other reservation has.
    """

    name: str
    node_id: str
    address: str
    free: ResourceNeeds


def fit(
    parts: Mapping[str, ResourceNeeds], nodes: Sequence[ClusterNode], strategy: Strategy
) -> dict[str, ClusterNode]:
    """Return nodes on which the parts fit, chosen from the largest part to the smallest.

    Args:
        parts: What each part needs, by name.
        nodes: The nodes of the cluster.
        strategy: How parts are spread.

    Raises:
        UnsupportedError: A part fits on no node, or the parts don't fit together; with numbers.
    """
    _check_each(parts, nodes)
    if strategy is Strategy.STRICT_PACK:
        total = total_needs(parts.values())
        for node in nodes:
            if total.fit_in(node.free):
                return dict.fromkeys(parts, node)
        raise UnsupportedError(_together(parts, nodes, "on one node"))
    left = {node.node_id: node.free for node in nodes}
    places: dict[str, ClusterNode] = {}
    for part, needs in sorted(parts.items(), key=lambda item: (-item[1].cores, item[0])):
        used = {place.node_id for place in places.values()}
        able = [node for node in nodes if needs.fit_in(left[node.node_id])]
        empty = [node for node in able if node.node_id not in used]
        if strategy is Strategy.STRICT_SPREAD:
            able = empty
        elif strategy is Strategy.SPREAD:
            able = empty or able
        elif strategy is Strategy.PACK:
            able = [node for node in able if node.node_id in used] or able
        if not able:
            where = "on a node each" if strategy is Strategy.STRICT_SPREAD else "together"
            raise UnsupportedError(_together(parts, nodes, where))
        places[part] = min(able, key=lambda node: left[node.node_id].cores)
        left[places[part].node_id] -= needs
    return places


def _check_each(parts: Mapping[str, ResourceNeeds], nodes: Collection[ClusterNode]) -> None:
    """Raise UnsupportedError if a part fits on no node."""
    cores = max((node.free.cores for node in nodes), default=0.0)
    memory = max((node.free.memory_bytes for node in nodes), default=0)
    for part, needs in parts.items():
        if needs.cores > cores:
            raise UnsupportedError(
                f"{part} needs {needs.cores:.3g} cores, no node has more than {cores:.3g} left; "
                f"{_REMEDY}"
            )
        if needs.memory_bytes > memory:
            raise UnsupportedError(
                f"{part} needs {needs.memory_bytes / 1e6:.0f} MB, "
                f"no node has more than {memory / 1e6:.0f} MB left; add a node with more"
            )


def _together(
    parts: Mapping[str, ResourceNeeds], nodes: Collection[ClusterNode], where: str
) -> str:
    needs = total_needs(parts.values())
    free = ", ".join(f"{node.name} {node.free}" for node in nodes)
    return f"{len(parts)} parts need {needs} {where}, and free are: {free}; {_REMEDY}"
