"""Tasks of an iteration: the work of regions, and the tasks for which it waits.

The work of a region is sequential, as its GPUs and its OCS do one thing at a time. Regions exchange
nothing but bytes: a micro-batch's activations and gradients between pipeline stages, and gradients
of weights between replicas.
"""

from dataclasses import dataclass

from moefabric.workload.iteration import Collective, Compute, Pair, Reconfigure, Transfer


@dataclass(frozen=True)
class AllReduce:
    """The sum of a layer's gradients over replicas, in rings over the EPS.

    Attributes:
        layer: Number of the layer.
        pairs: Each server and its counterpart in the next replica.
        bytes: Bytes of each pair.
        kind: "all-reduce".
        direction: "backward".
    """

    layer: int
    pairs: tuple[Pair, ...]
    bytes: float
    kind: str = "all-reduce"
    direction: str = "backward"


Work = Compute | Reconfigure | Collective | Transfer | AllReduce


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
