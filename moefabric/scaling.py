"""How far rates, bytes and times are scaled so that this machine tells the truth."""

import os
from collections.abc import Iterable
from math import ceil
from typing import Final

from moefabric.topology import Fabric, Scale

SHORTEST_COLLECTIVE_S: Final = 0.2
"""A collective that lasts less on the wire measures its set-up instead of the fabric."""

CARRIED_BPS: Final = {"ovs-netdev": 0.4e9, "ovs-kernel": 1.6e9}
"""What all NICs of a fabric together may carry for each core, by datapath, with a third of the machine idle."""


def propose(fabrics: Iterable[Fabric], shortest_s: float, datapath: str, cores: int | None = None) -> Scale:
    """The scale at which the densest of these fabrics stays within what the machine carries and no collective is too short.

    `shortest_s` is the shortest predicted collective in the model's seconds. Byte factors are rounded up to one or two
    significant digits, so that rates stay readable.
    """
    cores = cores or os.cpu_count() or 1
    densest = max(len(f.servers) * (f.optical + f.electrical) * f.nic_rate_bps for f in fabrics)
    dilation = float(max(1, ceil(SHORTEST_COLLECTIVE_S / shortest_s))) if shortest_s > 0 else 1.0
    factor = max(1.0, densest / (CARRIED_BPS[datapath] * cores))
    return Scale(bytes=_readable(factor / dilation), dilation=dilation)


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
