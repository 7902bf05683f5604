"""All-to-alls that the packet simulator of MixNet judges, with bands for the model's errors.

The bands were written down before the simulator had run. They follow from what its sources say:
flows are hashed onto the paths of a fat tree, connections start with 100 packets and stop growing
at a queue of 50, and a link's picoseconds per byte are whole numbers, so that 300 Gb/s are 308.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric_studies.oracle.golden_results import golden_matrix

FloatArray = NDArray[np.float64]
Band = tuple[float, float]

NICS: Final = 8
"""NICs and GPUs of a server."""
_TOKEN_BYTES: Final = 2 * 6144
"""A token of Mixtral 8x22B in 16 bits."""
_MIB: Final = 1 << 20
_RATES_BPS: Final = (100e9, 400e9)
_SHARES: Final = (1.0, 1 / 8, 1 / 64)


class Network(StrEnum):
    """Network that carries an all-to-all in the simulator."""

    FAT_TREE = "fat-tree"
    """A host for each GPU on a 1:1 fat tree, and a random path for each flow."""
    ONE_SWITCH = "one switch"
    """The same hosts on one switch: no flows collide between switches."""
    MIXNET = "mixnet"
    """Circuits between servers, and a fat tree with one wide port for each server."""


class Group(StrEnum):
    """Cases for which one band holds."""

    ONE_SWITCH = "one switch"
    FAT_TREE = "fat tree with hashed flows"
    CIRCUITS = "circuits end last"
    EPS_OF_CIRCUITS = "EPS beside circuits ends last"


_NETWORKS: Final = (
    (Network.FAT_TREE, 0),
    (Network.ONE_SWITCH, 0),
    (Network.MIXNET, 6),
    (Network.MIXNET, 4),
)


@dataclass(frozen=True)
class JudgedCase:
    """An all-to-all on a network.

    Attributes:
        demand: Name of the demand.
        share: Part of the demand's bytes.
        rate_bps: Rate of a NIC.
        network: What carries it.
        optical: NICs of a server that end circuits.
        rotated: Whether each server begins with another receiver; otherwise all begin with the
            first one, as in MixNet's simulator.
    """

    demand: str
    share: float
    rate_bps: float
    network: Network
    optical: int = 0
    rotated: bool = False

    @property
    def is_short(self) -> bool:
        """True if start-up and latency are a notable part of its time."""
        return self.share < _SHARES[1]

    def matrix(self, demands: Mapping[str, FloatArray]) -> FloatArray:
        """Return the bytes [server, server], whole numbers without those that stay on a server."""
        scaled: FloatArray = np.floor(demands[self.demand] * self.share)
        np.fill_diagonal(scaled, 0.0)
        return scaled


def demands(folder: Path) -> dict[str, FloatArray]:
    """Return the bytes [server, server] of each demand by name.

    Args:
        folder: Folder of the examples.
    """
    data = folder / "data"
    gating = json.loads((data / "gating-8x8.json").read_text())["num_global_tokens_per_expert"]
    by_name = {
        "demand-4x4": json.loads((data / "demand-4x4.json").read_text()),
        "gating-8x8": np.array(gating) * _TOKEN_BYTES,
        "even, 8 servers": np.full((8, 8), 48 * _MIB),
        "pairs of 8 servers": np.array(golden_matrix("pairskew8")) * 16,
    }
    return {name: np.array(rows, dtype=np.float64) for name, rows in by_name.items()}


def judged_cases(names: Mapping[str, FloatArray]) -> Iterator[JudgedCase]:
    """Yield all cases: each demand in each size, at each rate, on each network."""
    for demand, rate_bps, share, network in product(names, _RATES_BPS, _SHARES, _NETWORKS):
        yield JudgedCase(demand, share, rate_bps, *network)


def rotated_cases(names: Mapping[str, FloatArray]) -> Iterator[JudgedCase]:
    """Yield an experiment that was added when the results were known: another order of starts."""
    networks = Network.FAT_TREE, Network.ONE_SWITCH
    for demand, share, network in product(names, _SHARES, networks):
        yield JudgedCase(demand, share, _RATES_BPS[0], network, rotated=True)


def band(case: JudgedCase, group: Group) -> Band:
    """Return the least and the largest expected error: the model's time over theirs, less 1."""
    if group is Group.FAT_TREE:
        return (-0.60, 0.0) if case.is_short else (-0.50, -0.10)
    if group is Group.EPS_OF_CIRCUITS:
        return (-0.55, 0.03)
    if group is Group.ONE_SWITCH:
        return (-0.35, 0.01) if case.is_short else (-0.08, 0.01)
    highest = 0.035 if case.rate_bps == _RATES_BPS[0] else 0.12
    return (-0.35 if case.is_short else -0.08, highest)


HASHED_MEDIAN: Final[Band] = (1.3, 1.9)
"""The simulator's time on a fat tree over the model's even spreading: median of the long cases."""
HASHED_SPINES: Final = 8
HASHED_BAND: Final[Band] = (-0.35, 0.15)
"""Expected error of a model that hashes flows (`hash_seed`) on rotated long cases of fat trees.

It was written down before that model was set beside the results. The model's leaf holds 8 NICs and
flows collide between leaves and spines. The simulator's holds 4, and flows collide in two tiers.
"""
HASHED_MEDIAN_BAND: Final[Band] = (-0.15, 0.10)
"""Band in which the median of these errors was expected."""
