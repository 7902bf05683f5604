"""Orders of an all-to-all in the fluid model: of recorded demands, of MixNet's, and of Zipf's."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.api.workloads import CollectiveOrder
from moefabric_studies.grids import Grid, grid
from moefabric_studies.systems.aurora.colocation import moving
from moefabric_studies.systems.aurora.orders import (
    Aurora,
    AuroraGreedy,
    RandomOrder,
    RingShift,
    ShortestFirst,
    port_bytes,
)
from moefabric_studies.systems.aurora.pictures import OrderRatios

CONCURRENT, AURORA, GREEDY, SJF, RCS, RING = (
    "concurrent",
    "aurora",
    "aurora-greedy",
    "sjf",
    "rcs",
    "ring-shift",
)
ORDERS: Final[Mapping[str, CollectiveOrder]] = {
    AURORA: Aurora(),
    GREEDY: AuroraGreedy(),
    RING: RingShift(),
    RCS: RandomOrder(),
    SJF: ShortestFirst(),
}
_DRAWS: Final = 8
"""Demands of each exponent."""

Demand = NDArray[np.float64]
"""Bytes or tokens [from, to] that leave their server."""


def fluid_ratios(demands: Sequence[Demand]) -> OrderRatios:
    """Return the times of demands in the fluid model over their bounds, by order."""
    ratios: dict[str, list[float]] = {CONCURRENT: [1.0] * len(demands)}
    for name, order in ORDERS.items():
        ratios[name] = [
            sum(map(port_bytes, order.phases(demand))) / port_bytes(demand) for demand in demands
        ]
    return ratios


def other_demands(matrix: Demand, exponents: Sequence[float]) -> Grid:
    """Return the times of MixNet's demand and of generated ones in the fluid model, by order.

    Args:
        matrix: MixNet's demand; the generated ones have as many servers.
        exponents: Exponents of Zipf's law.
    """
    cases = {"MixNet's matrix": [matrix]}
    cases |= {f"Zipf, exponent {s:g}": zipf_demands(len(matrix), s) for s in exponents}
    rows = []
    for name, demands in cases.items():
        ratios = fluid_ratios(demands)
        cells = [f"{median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for r in ratios.values()]
        rows.append((name, *cells))
    return grid(
        "systems/aurora/demands", rows, header=("demand", *fluid_ratios([matrix])), draws=_DRAWS
    )


def zipf_demands(servers: int, exponent: float) -> list[Demand]:
    """Return demands in which the receivers' popularity follows Zipf's law."""
    rng = np.random.default_rng(1)
    popularity = np.arange(1, servers + 1) ** -float(exponent)
    return [moving(popularity * rng.lognormal(0, 0.3, (servers, servers))) for _ in range(_DRAWS)]
