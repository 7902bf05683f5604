"""Splits a demand in the proportions that suit assumed demands.

Each pair's bytes take its paths in the proportions that were computed for the assumed demands, as
if the split had been installed before the gate ran.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split
from moefabric.core.topology import Fabric
from moefabric.planner.robust_split import robust_split

PolicySplit = Callable[[Fabric, DemandMatrix, CircuitSet], Split]
"""`moefabric.planner.policy.Policy.split`."""

_UNIFORM_BYTES: Final = 1e9
"""Bytes of each pair of a uniform demand; proportions don't depend on them."""


def assumed_split(
    fabric: Fabric,
    split: PolicySplit,
    demand: DemandMatrix,
    circuits: CircuitSet,
    assumed: Sequence[DemandMatrix],
) -> Split:
    """Split a demand in the proportions for other demands.

    Args:
        split: The policy's function that splits a demand.
        assumed: Demands between the same servers: the policy splits one, `robust_split` several.
            Empty for the demand itself.

    Returns:
        One share for each ordered pair of servers that owes something in `demand`. A pair that owes
        nothing in the assumed demands has the proportions of a uniform demand.
    """
    if not assumed or all(other == demand for other in assumed):
        return split(fabric, demand, circuits)
    if len(assumed) == 1:
        shares = _shares(split(fabric, assumed[0], circuits))
    else:
        shares = _shares(robust_split(fabric, assumed, circuits))
    owed = tuple(demand.pairs())
    if any((src, dst) not in shares for src, dst, _ in owed):
        uniform = DemandMatrix(demand.servers, np.full_like(demand.array, _UNIFORM_BYTES))
        shares = _shares(split(fabric, uniform, circuits)) | shares
    return Split(tuple(shares[src, dst].of_size(size) for src, dst, size in owed))


def _shares(split: Split) -> dict[tuple[str, str], Share]:
    return {(share.src, share.dst): share for share in split if share.bytes > 0}
