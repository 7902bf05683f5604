"""The price of a network of servers, and the performance for each dollar.

Prices are those of the MixNet paper (arXiv 2501.03905, table 4): list prices, and TopoOpt's prices
for the OCS, the patch panel, and 100 and 200 Gb/s. Only ports in use are counted, and every fibre
is 500 m long. `tests/unit/core/test_network_cost.py` checks that the published cost ratios result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric
from moefabric.core.units import rate_text

FIBRE_USD: Final = 150.0
"""Price of a fibre: 500 m at 0.3 USD a metre."""


@dataclass(frozen=True)
class Prices:
    """USD at one NIC rate: a transceiver, a NIC, and ports of EPS, OCS and patch panel."""

    transceiver: float
    nic: float
    electrical_port: float
    ocs_port: float = 520.0
    patch_port: float = 100.0


PRICES: Final[Mapping[float, Prices]] = {
    100e9: Prices(99, 659, 187),
    200e9: Prices(239, 1079, 374),
    400e9: Prices(659, 1499, 1090),
    800e9: Prices(1399, 2248, 1400),
}
"""By NIC rate in bits per second.

No 800 Gb/s NIC is on sale: its price is 1.5 times that of the 400 Gb/s NIC.
"""


@dataclass(frozen=True)
class NetworkInventory:
    """The servers and NICs of a network, from which its price is computed.

    Attributes:
        servers: Number of servers.
        electrical: NICs of a server on packet switches.
        optical: NICs of a server on an OCS.
        patch_panel_nics: NICs of a server on a patch panel.
        oversubscription: Downward rate of a leaf, relative to its upward rate.
    """

    servers: int
    electrical: int
    optical: int = 0
    patch_panel_nics: int = 0
    oversubscription: float = 1.0


NETWORKS: Final[Mapping[str, NetworkInventory]] = {
    "fat-tree": NetworkInventory(1, 8),
    "oversubscribed": NetworkInventory(1, 8, oversubscription=3.0),
    "rail-optimised": NetworkInventory(1, 8),
    "mixnet": NetworkInventory(1, 2, 6),
    "topoopt": NetworkInventory(1, 0, 0, 8),
}
"""Inventory of a server with eight NICs on each of the paper's networks."""


def inventory(fabric: Fabric) -> NetworkInventory:
    """Return the inventory of a fabric, from which its price is computed.

    The fabric is priced as a part of a network of the paper's size, whose EPS has three tiers.
    """
    eps = fabric.eps
    return NetworkInventory(
        servers=len(fabric.primary_servers),
        electrical=fabric.electrical,
        optical=0 if fabric.patch_panel else fabric.optical,
        patch_panel_nics=fabric.optical if fabric.patch_panel else 0,
        oversubscription=eps.oversubscription if eps and fabric.spines else 1.0,
    )


def prices(rate_bps: float) -> Prices:
    """Return the prices at a NIC rate in bits per second.

    Raises:
        SpecError: If the rate has no prices; the message lists the rates with prices.
    """
    if rate_bps not in PRICES:
        known = ", ".join(map(rate_text, PRICES))
        raise SpecError([("nic rate", f"{rate_text(rate_bps)} has no prices; {known} have")])
    return PRICES[rate_bps]


def network_usd(network: NetworkInventory, rate_bps: float) -> float:
    """Return the price of a network in USD.

    An electrical NIC comes with five ports of a non-blocking Clos of three tiers (its leaf's, and
    two for each link above it), six transceivers and three fibres. At an oversubscription of r,
    everything above the leaf is bought once for r NICs: 1 + 4/r ports, 2 + 4/r transceivers (its
    own and its leaf's) and 1 + 2/r fibres. Rails are the same Clos with other cabling. An optical
    NIC comes with one OCS port, one transceiver and one fibre; a NIC on a patch panel with one
    panel port, one transceiver and one fibre.

    Raises:
        SpecError: If the rate has no prices.
    """
    price = prices(rate_bps)
    above = 1 / network.oversubscription
    clos = (2 + 4 * above) * price.transceiver + (1 + 4 * above) * price.electrical_port
    nics = (
        (network.electrical, clos + (1 + 2 * above) * FIBRE_USD),
        (network.optical, price.transceiver + price.ocs_port + FIBRE_USD),
        (network.patch_panel_nics, price.transceiver + price.patch_port + FIBRE_USD),
    )
    return network.servers * sum(number * (price.nic + links) for number, links in nics)


def paper_network_usd(name: str, servers: int, rate_bps: float) -> float:
    """Return the price in USD of one of the paper's networks (`NETWORKS`) at 8 NICs a server."""
    return network_usd(replace(NETWORKS[name], servers=servers), rate_bps)


def performance_per_dollar(iteration_s: float, usd: float) -> float:
    """Return iterations per second for each dollar of network (paper section 7.4)."""
    return 1.0 / (iteration_s * usd)


def performance_per_dollar_ratio(
    iteration_s: float, usd: float, base_s: float, base_usd: float
) -> float:
    """Return a network's performance per dollar, relative to a base network's."""
    return performance_per_dollar(iteration_s, usd) / performance_per_dollar(base_s, base_usd)
