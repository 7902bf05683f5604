"""Port numbers of OCSes: the optical NIC on each input, and the input of each optical NIC."""

from moefabric.core.nic import Nic, NicKind
from moefabric.core.topology import Fabric, Region


def ocs_port(fabric: Fabric, nic: Nic) -> int:
    """Return the OCS input (from 1) of an optical NIC's transmit fibre.

    Its receive fibre is plugged into output `ocs_port + ocs.ports`.
    """
    region = fabric.region_of[nic.server]
    return region.servers.index(nic.server) * fabric.optical + nic.index + 1


def nic_at(fabric: Fabric, region: Region, port: int) -> Nic:
    """Return the optical NIC behind an input of a region's OCS."""
    position, index = divmod(port - 1, fabric.optical)
    return Nic(region.servers[position], NicKind.OPTICAL, index)
