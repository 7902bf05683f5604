"""The built-in schedules by name, and which of them a collective takes by default."""

from collections.abc import Mapping
from typing import Final

from moefabric.workload.collectives.all_to_all import PAIRWISE, WINDOWED
from moefabric.workload.collectives.direct import DIRECT
from moefabric.workload.collectives.halving_doubling import DISSEMINATION, HALVING_DOUBLING
from moefabric.workload.collectives.ring import CHAIN, MULTI_RING, RING
from moefabric.workload.collectives.schedule import CollectiveSchedule
from moefabric.workload.collectives.server_all_to_all import HIERARCHICAL, MIXNET
from moefabric.workload.collectives.tree import TREE
from moefabric.workload.graphs.execution_graph import CollectiveKind

_ALL: Final[tuple[CollectiveSchedule, ...]] = (
    DIRECT,
    PAIRWISE,
    WINDOWED,
    MIXNET,
    HIERARCHICAL,
    RING,
    MULTI_RING,
    TREE,
    CHAIN,
    HALVING_DOUBLING,
    DISSEMINATION,
)

BUILT_IN: Final[Mapping[str, CollectiveSchedule]] = {s.name: s for s in _ALL}
"""Built-in schedules by name. Each is also an entry point of the group `moefabric.schedules`."""

DEFAULTS: Final[Mapping[CollectiveKind, CollectiveSchedule]] = {
    "all_to_all": DIRECT,
    **dict.fromkeys(RING.kinds, RING),
    **dict.fromkeys(CHAIN.kinds, CHAIN),
    "gather": DIRECT,
    "scatter": DIRECT,
    "barrier": DISSEMINATION,
}
"""The schedule of each collective if none is chosen."""
