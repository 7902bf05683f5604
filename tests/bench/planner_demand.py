"""Fabrics and demand for the planner's figures."""

import numpy as np

from controller.planner.water import Array, EpsLinks
from moefabric.topology import Eps, Fabric, Ocs, Region


def fabric(regions: int, servers: int, optical: int = 6, electrical: int = 2) -> Fabric:
    each = tuple(
        Region(
            f"r{r}",
            r,
            tuple(f"s{r * servers + i}" for i in range(servers)),
            Ocs(f"ocs{r}", servers * optical),
        )
        for r in range(regions)
    )
    return Fabric("f", each, 8, optical, electrical, 100e9, Eps(servers * regions))


def owed(servers: int, seed: int, shape: str) -> Array:
    """Demand as of gating (`skewed`: some servers hot for all), heavy-tailed (`pareto`), or with most pairs empty (`sparse`)."""
    draw = np.random.default_rng(seed)
    made = {
        "skewed": lambda: (
            np.outer(np.ones(servers), draw.dirichlet(np.full(servers, 2.0)))
            * draw.lognormal(0, 0.2, (servers, servers))
        ),
        "pareto": lambda: draw.pareto(1.2, (servers, servers)),
        "sparse": lambda: draw.pareto(1.2, (servers, servers)) * (draw.random((servers, servers)) < 0.3),
    }[shape]()
    np.fill_diagonal(made, 0.0)
    scaled: Array = made / made.max() * 1e9
    return scaled


def links_of(servers: int) -> EpsLinks:
    made = fabric(1, servers)
    return EpsLinks.of(made, made.servers)
