"""How far rates, bytes and times are scaled so that this machine tells the truth."""

import os
from collections.abc import Iterable
from math import ceil
from typing import Final

from moefabric.topology import Fabric, Scale

STARTING_S: Final = 6e-3
STARTING_SERVER_S: Final = 1.5e-3
"""How far apart the first and the last server start a collective: what waking up takes, and what a core needs for each server."""
STARTING_SHARE: Final = 0.02
"""How much of a collective that may be. One that lasts less measures its set-up instead of the fabric."""

CARRIED_BPS: Final = {"bpf": 1.6e9, "ovs-netdev": 0.4e9, "ovs-kernel": 1.6e9}
"""What all NICs of a fabric together may carry for each core, by datapath, with a third of the machine idle."""


def propose(
    fabrics: Iterable[Fabric],
    shortest_s: float,
    datapath: str,
    cores: int | None = None,
    together: int | None = None,
) -> Scale:
    """The scale at which the densest of these fabrics stays within what the machine carries and no collective is too short.

    `shortest_s` is the shortest predicted collective in the model's seconds, which so many servers start `together`: all of them, if nothing is said. Byte factors are rounded up to one or two
    significant digits, so that rates stay readable.
    """
    cores, listed = cores or os.cpu_count() or 1, list(fabrics)
    densest = max(len(f.servers) * (f.optical + f.electrical) * f.nic_rate_bps for f in listed)
    wanted_s = shortest_wall_s(together or max(len(f.servers) for f in listed), cores)
    dilation = float(max(1, ceil(wanted_s / shortest_s * (1 - 1e-9)))) if shortest_s > 0 else 1.0
    factor = max(1.0, densest / (CARRIED_BPS[datapath] * cores))
    return Scale(bytes=_readable(factor / dilation), dilation=dilation)


def shortest_wall_s(servers: int, cores: int) -> float:
    """How long a collective of so many servers has to last on the wire, so that it isn't its set-up that is measured."""
    return (STARTING_S + servers * STARTING_SERVER_S / cores) / STARTING_SHARE


def _readable(factor: float) -> float:
    """The next round number: 1, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten."""
    power = 1.0
    while power * 10 <= factor:
        power *= 10
    return next(
        step * power
        for step in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
        if step * power >= factor * (1 - 1e-9)
    )
