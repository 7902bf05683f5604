"""Description: the hardware's part of `inspect --json`, as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

from emulator.plan import OcsPlan, Plan, SwitchPlan
from moefabric.management import SCPI_PORT, Wiring


def described(
    wiring: Wiring, plan: Plan, carrier: Mapping[str, bool], processes: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    """Servers, OCSes and switches of a fabric; `carrier` is by interface, `processes` are names and pids."""
    return {
        "fabric": wiring.fabric.name,
        "servers": [_server(wiring, plan, carrier, server) for server in plan.servers],
        "ocs": [_ocs(ocs) for ocs in plan.ocses],
        "switches": [_switch(switch, wiring.switch) for switch in plan.switches],
        "processes": [{"name": name, "pid": pid} for name, pid in processes],
    }


def _server(wiring: Wiring, plan: Plan, carrier: Mapping[str, bool], server: str) -> dict[str, Any]:
    fabric = wiring.fabric
    links = {link.name: link for link in plan.links}
    return {
        "name": server,
        "region": fabric.region_of[server].name,
        "addresses": list(fabric.addresses(server)),
        "nics": [
            {
                "name": str(nic),
                "kind": nic.kind.value,
                "rate_bps": links[str(nic)].rate_bps,
                "carrier": carrier.get(links[str(nic)].a.name, False),
            }
            for nic in fabric.nics(server)
        ],
        "management": wiring.management.server(fabric, server),
    }


def _ocs(ocs: OcsPlan) -> dict[str, Any]:
    return {
        "name": ocs.name,
        "region": ocs.region.name,
        "management": ocs.address,
        "scpi_port": SCPI_PORT,
        "ports": ocs.ports,
        "circuits": [],
    }


def _switch(switch: SwitchPlan, datapath: str) -> dict[str, Any]:
    return {
        "name": switch.name,
        "bridge": switch.bridge,
        "datapath_id": switch.datapath_id,
        "datapath": datapath,
    }
