"""Hardware of a fabric as JSON values: for `inspect --json`, and for readers of its counters."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from moefabric.emulator.fabric.plan import FabricPlan, OcsPlan, SwitchPlan
from moefabric.emulator.ocs.scpi.dialect import SCPI
from moefabric.runtime.run_directory import FabricWiring


def counter_facts(
    plan: FabricPlan, index_of: Mapping[str, int], crossbars: Sequence[str]
) -> dict[str, Any]:
    """Return where the counters of each NIC and its OCS port are (module `port_counters`).

    Args:
        plan: the fabric.
        index_of: index of each interface of the fabric's own namespace.
        crossbars: the OCSes whose crossbars count frames.
    """
    nics = [
        link
        for link in plan.links
        if link.rate_bps is not None and "/" in link.name and link.a in link.ends
    ]
    return {
        "nics": [link.name for link in nics],
        "interfaces": [index_of[link.a.name] for link in nics],
        "tunnels": [link.name for link in nics if link.tunnel is not None],
        "crossbars": [
            {
                "ports": ocs.spec.ports,
                "inputs": {link.name: link.b.port for link in nics if link.b.node == ocs.name},
            }
            for name in crossbars
            for ocs in plan.ocses
            if ocs.name == name
        ],
        "counts_light": len(crossbars) == len(plan.ocses),
    }


def describe_plan(
    wiring: FabricWiring, plan: FabricPlan, carrier: Mapping[str, bool]
) -> dict[str, Any]:
    """Return servers, OCSes and switches as JSON values.

    Args:
        wiring: the wiring of the fabric.
        plan: its plan.
        carrier: whether an interface has a carrier, by the interface's name.
    """
    rates = {link.name: link.rate_bps for link in plan.links}
    near_ends = {link.name: link.a.name for link in plan.links}
    fabric = wiring.fabric
    servers = [
        {
            "name": server,
            "region": fabric.region_of[server].name,
            "addresses": list(fabric.addressing.addresses(server)),
            "nics": [
                {
                    "name": str(nic),
                    "kind": nic.kind.value,
                    "rate_bps": rates[str(nic)],
                    "carrier": carrier.get(near_ends[str(nic)], False),
                }
                for nic in fabric.nics(server)
            ],
            "management": wiring.management.server_address(fabric, server),
        }
        for server in plan.servers
    ]
    return {
        "fabric": fabric.name,
        "servers": servers,
        "ocs": [_describe_ocs(ocs) for ocs in plan.ocses],
        "switches": [_describe_switch(switch, wiring.switch) for switch in plan.switches],
        "links": [
            {"name": link.name, **asdict(link.behaviour)}
            for link in plan.programmed
            if link.behaviour is not None
        ],
    }


def _describe_ocs(ocs: OcsPlan) -> dict[str, Any]:
    return {
        "name": ocs.name,
        "region": ocs.region.name,
        "management": ocs.address,
        "scpi_port": SCPI.port,
        "ports": ocs.spec.ports,
        "circuits": [],
    }


def _describe_switch(switch: SwitchPlan, datapath: str) -> dict[str, Any]:
    return {
        "name": switch.name,
        "bridge": switch.bridge,
        "datapath_id": switch.datapath_id,
        "datapath": datapath,
    }
