"""Inspection: what a running fabric shows, put together from the emulator, the OCSes and the controllers."""

from typing import Any

from controller.client import ControllerClient
from emulator import lifecycle
from moefabric.errors import ControlError
from moefabric.management import RunDir, Wiring
from moefabric.topology import Region
from moefabric.units import rate_text

Json = dict[str, Any]


def inspected(name: str) -> Json:
    """The JSON of `moefabric inspect` (README, "JSON"). Circuits are what each OCS itself shows."""
    seen = lifecycle.inspect(name)
    wiring = Wiring.from_json(RunDir.named(name).wiring.read_bytes())
    regions: list[Region | None] = [*wiring.fabric.regions, *([None] if wiring.fabric.leaves else [])]
    seen["controllers"] = [_controller(wiring, region) for region in regions]
    by_region = {entry["region"]: entry for entry in seen["controllers"]}
    for ocs in seen["ocs"]:
        ocs["circuits"] = by_region[ocs["region"]].pop("circuits", [])
        ocs["dark"] = by_region[ocs["region"]].pop("dark", [])
    return seen


def _controller(wiring: Wiring, region: Region | None) -> Json:
    openflow, northbound = wiring.management.openflow(region), wiring.management.northbound(region)
    entry: Json = {
        "region": region.name if region else "eps",
        "openflow": f"{openflow[0]}:{openflow[1]}",
        "northbound": f"http://{northbound[0]}:{northbound[1]}",
    }
    with ControllerClient(northbound) as client:
        try:
            entry["health"] = client.health()
            entry["rules"] = client.rules()
            entry["counters"] = client.counters()
            if region is not None and region.ocs is not None:
                entry["circuits"] = [circuit.split("~") for circuit in client.circuits()]
                entry["dark"] = [circuit.split("~") for circuit in client.dark()]
        except ControlError as fault:
            entry["fault"] = str(fault)
    return entry


def lines(seen: Json) -> list[str]:
    """The same for a person."""
    made = [f"fabric {seen['fabric']}"]
    for server in seen["servers"]:
        nics = " ".join(
            f"{nic['name']}({rate_text(nic['rate_bps'])}{'' if nic['carrier'] else ', no carrier'})"
            for nic in server["nics"]
        )
        addresses = f"{server['addresses'][0]}..{server['addresses'][-1].rsplit('.', 1)[1]}"
        made.append(f"  {server['name']}  {addresses}  management {server['management']}  {nics}")
    for ocs in seen["ocs"]:
        lit = " ".join("~".join(ends) for ends in ocs["circuits"]) or "no light"
        dark = f"  dark: {' '.join('~'.join(ends) for ends in ocs['dark'])}" if ocs["dark"] else ""
        made.append(
            f"  {ocs['name']}  {ocs['ports']} ports, SCPI {ocs['management']}:{ocs['scpi_port']}  lit: {lit}{dark}"
        )
    made += [_controller_line(controller) for controller in seen["controllers"]]
    made += [f"  process {process['name']}  {process['pid']}" for process in seen["processes"]]
    return made


def _controller_line(controller: Json) -> str:
    state = controller.get("fault") or f"{len(controller['rules'])} rules"
    where = f"OpenFlow {controller['openflow']}, {controller['northbound']}"
    return f"  controller of {controller['region']}  {where}  {state}"
