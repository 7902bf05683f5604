"""The order of an all-to-all's transfers, as phases that follow each other.

A phase is a part of the demand. Its transfers start together, and the next phase starts when all of
them have ended. A synchronous phase starts after a barrier of all servers, which takes time on a
cluster. The order of senders that don't wait for each other has no barrier: its phases are the
intervals between two ends of transfers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix
from moefabric.workload.iterations.iteration import PAUSE, Collective, Compute, Operation

Bytes = NDArray[np.float64]
"""Bytes [from, to] with a zero diagonal."""

ORDERED_KINDS: Final = frozenset({"dispatch", "combine"})
"""Kinds of the collectives that are all-to-alls of tokens."""
_ROUNDING: Final = 1e-9
"""Part of a demand's bytes by which the sum of its phases may differ."""


class CollectiveOrder(Protocol):
    """Chooses the phases of an all-to-all.

    An order is pure: equal demands give equal phases.
    """

    @property
    def name(self) -> str:
        """The name that specifications use."""

    @property
    def barrier_s(self) -> float:
        """Model seconds from the end of a phase to the start of the next one."""

    @property
    def solve_s(self) -> float:
        """Model seconds that computing the phases takes before the first one starts."""

    def phases(self, demand: Bytes) -> Sequence[Bytes]:
        """Return the phases in their order.

        Args:
            demand: Bytes [from, to] of the all-to-all, with a zero diagonal.

        Returns:
            Bytes [from, to] of each phase. Their sum is the demand.
        """


@dataclass(frozen=True)
class Concurrent:
    """All transfers at once: one phase."""

    name: str = "concurrent"
    barrier_s: float = 0.0
    solve_s: float = 0.0

    def phases(self, demand: Bytes) -> Sequence[Bytes]:
        """Return the demand as the only phase."""
        return (demand,)


CONCURRENT: Final = Concurrent()


def ordered_operations(
    operations: Iterable[Operation], order: CollectiveOrder
) -> Iterator[Operation]:
    """Divide the all-to-alls of an iteration into phases.

    Args:
        operations: The operations of an iteration.
        order: The order of each all-to-all.

    Raises:
        ValueError: If the phases of an all-to-all aren't its demand.
    """
    for operation in operations:
        if isinstance(operation, Collective) and operation.kind in ORDERED_KINDS:
            yield from _phases(operation, order)
        else:
            yield operation


def _phases(collective: Collective, order: CollectiveOrder) -> Iterator[Operation]:
    """Yield an all-to-all as successive collectives, with the pauses before them."""
    demands = phase_demands(collective.demand, order)
    if len(demands) == 1 and not order.solve_s:
        yield collective
        return
    count = len(demands)
    pauses = chain((order.solve_s,), (order.barrier_s,) * (count - 1))
    for number, (demand, pause_s) in enumerate(zip(demands, pauses, strict=True)):
        if pause_s:
            place = collective.direction, collective.layer
            yield Compute(PAUSE, *place, (pause_s,) * len(demand.servers))
        counts = None if number else collective.counts
        yield replace(
            collective, demand=demand, phase=number, phases=count, pause_s=pause_s, counts=counts
        )


def phase_demands(demand: DemandMatrix, order: CollectiveOrder) -> tuple[DemandMatrix, ...]:
    """Return the demand of each phase that has bytes; the demand itself if none has.

    Raises:
        ValueError: If the sum of the phases isn't the demand, or a phase has negative bytes.
    """
    moving = demand.array - np.diag(np.diag(demand.array))
    phases = [np.asarray(phase, np.float64) for phase in order.phases(moving)]
    total, allowed = sum(phases, np.zeros_like(moving)), _ROUNDING * max(1.0, moving.sum())
    if np.abs(total - moving).max(initial=0.0) > allowed or any((p < 0).any() for p in phases):
        raise ValueError(f"{order.name}: the sum of the phases is not the demand")
    sent = (phase for phase in phases if phase.any())
    sending = tuple(DemandMatrix(demand.servers, phase, demand.by_rank) for phase in sent)
    return sending if len(sending) > 1 else (demand,)
