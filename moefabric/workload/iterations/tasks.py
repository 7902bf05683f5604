"""Tasks of an iteration: the work of regions, and the tasks for which it waits.

The work of a region is sequential, as its GPUs and its OCS do one thing at a time. Regions exchange
nothing but bytes: a micro-batch's activations and gradients between pipeline stages, and gradients
of weights between replicas.
"""

from dataclasses import dataclass

from moefabric.core.flows import Flow
from moefabric.workload.iterations.iteration import Collective, Compute, Pair, Reconfigure, Transfer


@dataclass(frozen=True)
class AllReduce:
    """The sum of a layer's gradients over replicas, in rings over the EPS.

    Attributes:
        layer: Number of the layer.
        pairs: Each server and its counterpart in the next replica.
        bytes: Bytes of each pair.
        least_s: Model seconds that other pairs, which aren't listed, give it at least.
        kind: "all-reduce".
        direction: "backward".
    """

    layer: int
    pairs: tuple[Pair, ...]
    bytes: float
    least_s: float = 0.0
    kind: str = "all-reduce"
    direction: str = "backward"


@dataclass(frozen=True)
class BackgroundTransfer:
    """Flows of regions that exist in a model only, over links that emulated regions use.

    Attributes:
        flows: The flows, in bytes of the model.
        seconds: Model seconds that the model says they take.
        direction: That of the work for which they stand.
        layer: Its layer; None if it belongs to none.
        kind: "background".
    """

    flows: tuple[Flow, ...]
    seconds: float
    direction: str = "forward"
    layer: int | None = None
    kind: str = "background"


@dataclass(frozen=True)
class Elsewhere:
    """Time that regions which exist in a model only take until other work may follow.

    Attributes:
        seconds: Model seconds.
        compute_s: Model seconds without transfers.
        direction: As that of other work.
        layer: None, as it belongs to none.
    """

    seconds: float
    compute_s: float = 0.0
    direction: str = "forward"
    layer: int | None = None


Sent = Collective | Transfer | AllReduce | BackgroundTransfer
"""Work that sends bytes."""
Work = Compute | Reconfigure | Elsewhere | Sent


@dataclass(frozen=True)
class Task:
    """Work of regions in one micro-batch.

    Attributes:
        regions: The regions that work; records name the first one.
        micro_batch: Number of the micro-batch.
        work: What they do.
        after: Positions of the tasks for which it waits, all of them earlier.
        barrier: Whether it covers all regions of the fabric, with no transfer beside it.
    """

    regions: tuple[str, ...]
    micro_batch: int
    work: Work
    after: tuple[int, ...]
    barrier: bool = False

    @property
    def region(self) -> str:
        """The region that records name."""
        return self.regions[0]


def runs_during(reconfiguration: Task, collective: Task) -> bool:
    """Return whether a reconfiguration is the one that may run during a collective.

    If it did, the task of the reconfiguration has nothing left to do.
    """
    work = collective.work
    return isinstance(work, Collective) and work.concurrent is reconfiguration.work
