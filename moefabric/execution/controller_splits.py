"""Splits of demands as the regions' controllers planned them."""

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Split
from moefabric.core.topology import Fabric
from moefabric.planner.sending.flow_pacing import SplitPolicy
from moefabric.results.records.records import CircuitChange


class ControllerSplits:
    """A policy that reuses the split of a region's last controller reply."""

    def __init__(self, policy: SplitPolicy) -> None:
        self.policy = policy
        self._known: dict[tuple[str, ...], tuple[DemandMatrix, CircuitSet, Split]] = {}
        self.circuits = policy.circuits

    def remember(self, demand: DemandMatrix, change: CircuitChange) -> None:
        """Keep the split that a controller planned for a demand."""
        self._known.pop(demand.servers, None)
        if change.split is not None:
            self._known[demand.servers] = demand, change.after, change.split

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Return the split of a region's demand over its lit circuits."""
        if (known := self._known.get(demand.servers)) is not None:
            own = frozenset(c for c in circuits if c.a.server in demand.servers)
            if known[0] == demand and known[1].circuits == own:
                return known[2]
        return self.policy.split(fabric, demand, circuits)
