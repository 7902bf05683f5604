"""Tasks: what a region does in an iteration, and which tasks must be done before it.

A region's own operations come one after the other, as its GPUs and its OCS can do but one at a time. Between regions there is nothing but bytes: a
micro-batch's activations and their gradients from stage to stage, and gradients of weights from replica to replica.
"""

from dataclasses import dataclass

from moefabric.iteration import Collective, Compute, Reconfigure

Pair = tuple[str, str]
"""From one server to another."""


@dataclass(frozen=True)
class Transfer:
    """A micro-batch's activations to the next stage, or their gradients to the one before: `bytes` from each server to its counterpart, by the EPS."""

    direction: str
    pairs: tuple[Pair, ...]
    bytes: float
    kind: str = "pipeline"
    layer: None = None


@dataclass(frozen=True)
class AllReduce:
    """A layer's gradients, summed over replicas: `bytes` from each server to the same one of the next replica, in a ring over the EPS."""

    layer: int
    pairs: tuple[Pair, ...]
    bytes: float
    kind: str = "all-reduce"
    direction: str = "backward"


Work = Compute | Reconfigure | Collective | Transfer | AllReduce


@dataclass(frozen=True)
class Task:
    """`work` of a region in one micro-batch, once the tasks `after` are done, by their position among all: every one is earlier.

    What concerns several regions is told of the first of `regions`.
    """

    regions: tuple[str, ...]
    micro_batch: int
    work: Work
    after: tuple[int, ...]

    @property
    def region(self) -> str:
        """The region that it is told of."""
        return self.regions[0]


def hides_in(light: Task, collective: Task) -> bool:
    """Whether a reconfiguration is the one that may be done while a collective goes on. Where it was, there is nothing left to do."""
    return isinstance(collective.work, Collective) and collective.work.meanwhile is light.work
