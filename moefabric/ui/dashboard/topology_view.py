"""A fabric as the page draws it: regions, servers, leaves, spines and NICs."""

from moefabric.core.fabric_description import fabric_description
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import rate_text
from moefabric.results.parts import Json


def topology_view(fabric: Fabric) -> Json:
    """Return the parts of a fabric as JSON values.

    The order of `nics` within the servers is that of readings of port counters.
    """
    return {
        "name": fabric.name,
        "description": fabric_description(fabric),
        "nic_rate": " to ".join(
            rate_text(bps) for bps in sorted({min(fabric.rates_bps), max(fabric.rates_bps)})
        ),
        "scale": {"bytes": fabric.scale.bytes, "dilation": fabric.scale.dilation},
        "gpus": fabric.gpus,
        "leaves": list(fabric.leaves),
        "spines": list(fabric.spines),
        "regions": [_region_view(fabric, region) for region in fabric.regions],
    }


def _region_view(fabric: Fabric, region: Region) -> Json:
    return {
        "name": region.name,
        "backup": region.backup,
        "ocs": region.ocs.name if region.ocs else None,
        "ocs_ports": region.ocs.ports if region.ocs else 0,
        "servers": [
            {
                "name": server,
                "address": fabric.addressing.addresses(server)[0],
                "nics": [str(nic) for nic in fabric.nics(server)],
                "nic_rate_bps": fabric.rate_bps(server),
                "leaves": {
                    str(nic): fabric.eps_wiring.leaf_of_nic(nic)
                    for nic in fabric.electrical_nics(server)
                    if fabric.leaves
                },
            }
            for server in region.servers
        ],
    }
