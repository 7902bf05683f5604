"""Paths inside a server, from the GPUs that have bytes to the NICs that send them, and back.

GPUs and NICs are next to each other on PCIe switches. Bytes that leave by a NIC on another PCIe
switch than that of their GPU are handed over first (*gathered*), and bytes that arrive on another
one afterwards (*scattered*): steps 2 and 5 of MixNet's all-to-all (arXiv 2501.03905, section 5.3).
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from annotated_types import Interval

NUMA_NODES: Final = 2
"""NUMA nodes of a server. Its PCIe switches are divided between them in order."""


@dataclass(frozen=True)
class ServerPaths:
    """Paths inside each server, between its GPUs and its NICs."""

    gather: Literal["none", "nvswitch", "pcie"] = "nvswitch"
    """Path by which GPUs hand bytes to the GPUs next to the NICs that send them, before an
    all-to-all, and get theirs afterwards: `nvswitch`, at `training.nvlink_rate` of each GPU;
    `pcie`, over the links of PCIe switches and between the two NUMA nodes; `none`, in no time."""
    pcie_switches: Annotated[int, Interval(ge=0, le=250)] = 0
    """PCIe switches of a server. Its GPUs, its optical NICs and its electrical NICs are spread
    evenly over them, and they over the NUMA nodes. 0: one for each GPU, or for each NIC if there
    are fewer."""
    pcie_rate_bps: float = 252e9
    """Rate of a PCIe switch's link to its NUMA node in each direction. Default: PCIe 4.0 x16.

    16 lanes of 16 GT/s, of which 128 of 130 bits are data.
    """
    numa_rate_bps: float = 332.8e9
    """Rate between the NUMA nodes in each direction. Default: two links of UPI.

    Each has 10.4 GT/s of 2 bytes.
    """
