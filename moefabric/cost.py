"""Cost: what a network of servers costs, and what a dollar of it buys.

Prices are those of the MixNet paper (arXiv 2501.03905, table 4: list prices, TopoOpt's for OCS, patch panel and 100 and 200 Gb/s). Only ports that are
used are counted; a fibre is charged at 500 m. Counted so, the published cost ratios come out; `tests/unit/test_cost.py` holds them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from moefabric.errors import SpecError
from moefabric.topology import Fabric
from moefabric.units import rate_text

FIBRE_USD: Final = 150.0
"""One fibre: 500 m at 0.3 USD a metre."""


@dataclass(frozen=True)
class Prices:
    """USD of one transceiver, NIC, electrical switch port, OCS port and patch-panel port, at one rate."""

    transceiver: float
    nic: float
    electrical_port: float
    ocs_port: float = 520.0
    patch_port: float = 100.0


PRICES: Final[Mapping[float, Prices]] = MappingProxyType(
    {
        100e9: Prices(99, 659, 187),
        200e9: Prices(239, 1079, 374),
        400e9: Prices(659, 1499, 1090),
        800e9: Prices(1399, 2248, 1400),
    }
)
"""By NIC rate in bits a second. No 800 Gb/s NIC is on sale: 1.5 times the 400 Gb/s one."""


@dataclass(frozen=True)
class Wired:
    """What a network is bought as: servers, and how many NICs of each end on packet switches, an OCS or a patch panel.

    `oversubscription` is how many times as much a leaf of the packet switches carries downwards as upwards.
    """

    servers: int
    electrical: int
    optical: int = 0
    patched: int = 0
    oversubscription: float = 1.0


NETWORKS: Final[Mapping[str, Wired]] = MappingProxyType(
    {
        "fat-tree": Wired(1, 8),
        "oversubscribed": Wired(1, 8, oversubscription=3.0),
        "rail-optimised": Wired(1, 8),
        "mixnet": Wired(1, 2, 6),
        "topoopt": Wired(1, 0, 0, 8),
    }
)
"""One server, of eight NICs, of each of the paper's networks."""


def bought(fabric: Fabric) -> Wired:
    """What a fabric is bought as: as part of a network of the paper's size, whose packet switches are three tiers."""
    eps = fabric.eps
    return Wired(
        servers=len(fabric.working),
        electrical=fabric.electrical,
        optical=0 if fabric.panel else fabric.optical,
        patched=fabric.optical if fabric.panel else 0,
        oversubscription=eps.oversubscription if eps and fabric.spines else 1.0,
    )


def prices(rate_bps: float) -> Prices:
    """The prices at a NIC rate. SpecError, with the rates there are, where there are none."""
    if rate_bps not in PRICES:
        there = ", ".join(map(rate_text, PRICES))
        raise SpecError([("nic rate", f"{rate_text(rate_bps)} has no prices; {there} have")])
    return PRICES[rate_bps]


def network_usd(wired: Wired, rate_bps: float) -> float:
    """What a network costs.

    An electrical NIC comes with five ports of a non-blocking Clos of three tiers (its leaf's, and two for each link above it), six transceivers and
    three fibres. Of an oversubscription of r, all above the leaf is bought once for r NICs: 1 + 4/r ports, 2 + 4/r transceivers (its own and its
    leaf's) and 1 + 2/r fibres. Rails are the same Clos with other cabling. An optical NIC comes with one OCS port, one transceiver and one fibre; a patched NIC with one panel port, one transceiver and one fibre.
    """
    each = prices(rate_bps)
    above = 1 / wired.oversubscription
    electrical = (
        (2 + 4 * above) * each.transceiver
        + (1 + 4 * above) * each.electrical_port
        + (1 + 2 * above) * FIBRE_USD
    )
    optical = each.transceiver + each.ocs_port + FIBRE_USD
    patched = each.transceiver + each.patch_port + FIBRE_USD
    nics = (wired.electrical + wired.optical + wired.patched) * each.nic
    by_way = wired.electrical * electrical + wired.optical * optical + wired.patched * patched
    return wired.servers * (nics + by_way)


def paper_network_usd(name: str, servers: int, rate_bps: float) -> float:
    """What one of the paper's networks costs, servers having eight NICs."""
    return network_usd(replace(NETWORKS[name], servers=servers), rate_bps)


def performance_per_dollar(iteration_s: float, usd: float) -> float:
    """Iterations a second for each dollar of network (paper section 7.4)."""
    return 1.0 / (iteration_s * usd)


def cost_efficiency(iteration_s: float, usd: float, base_s: float, base_usd: float) -> float:
    """How many times as much performance a dollar buys as it does of a base network."""
    return performance_per_dollar(iteration_s, usd) / performance_per_dollar(base_s, base_usd)
