"""The schedule that each collective takes by default, of those in `moefabric.schedules`."""

from collections.abc import Mapping
from typing import Final

from moefabric.workload.collectives.direct import DIRECT
from moefabric.workload.collectives.halving_doubling import DISSEMINATION
from moefabric.workload.collectives.ring import CHAIN, RING
from moefabric.workload.collectives.schedule import CollectiveSchedule
from moefabric.workload.graphs.execution_graph import CollectiveKind

DEFAULTS: Final[Mapping[CollectiveKind, CollectiveSchedule]] = {
    "all_to_all": DIRECT,
    **dict.fromkeys(RING.kinds, RING),
    **dict.fromkeys(CHAIN.kinds, CHAIN),
    "gather": DIRECT,
    "scatter": DIRECT,
    "barrier": DISSEMINATION,
}
"""The schedule of each collective if none is chosen."""
