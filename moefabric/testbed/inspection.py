"""Inspection of a running fabric: its hardware, OCSes and controllers, as JSON and as text."""

from collections.abc import Iterator, Mapping, Sequence

from moefabric.config.plugins import ocs_dialects
from moefabric.controller.client import ControllerClient
from moefabric.controller.southbound.ocs.remote_ocs import device_address
from moefabric.core.errors import ControlError
from moefabric.core.nic import Nic, NicKind
from moefabric.core.ocs import Ocs, OcsControl
from moefabric.core.topology import Fabric, Region, ocs_port
from moefabric.core.units import rate_text
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import process_id
from moefabric.emulator.linux import namespaces
from moefabric.report.formatting import aligned, wrapped
from moefabric.results.parts import Json
from moefabric.runtime.processes import end_text
from moefabric.runtime.run_directory import ControlPlane, FabricWiring, RunDirectory
from moefabric.testbed.fabric_reader import FabricReader
from moefabric.testbed.failure_injection import stopped_controller


def inspect_fabric(name: str) -> Json:
    """Return the JSON of `moefabric inspect`, with the circuits that each OCS itself reports.

    They are None while the controller that knows them is silent.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    inspection = lifecycle.inspect(name)
    run_dir = RunDirectory.of_fabric(name)
    wiring = FabricWiring.from_json(run_dir.wiring_file.read_bytes())
    reader = FabricReader(name, wiring)
    controllers = [_controller(run_dir, wiring, region) for region in reader.controllers]
    inspection["controllers"] = controllers
    for server in inspection["servers"]:
        for nic in server["nics"]:
            nic["far"] = far_end(wiring.fabric, Nic.parse(nic["name"]))
    inspection["controllers"] += _external(run_dir, wiring)
    by_region = {entry["region"]: entry for entry in inspection["controllers"]}
    ocses = {ocs.name: (region, ocs) for region, ocs in wiring.fabric.ocses.items()}
    inspection["ocs"] = [ocs_entry(entry, ocses[entry["name"]][1]) for entry in inspection["ocs"]]
    for ocs in inspection["ocs"]:
        entry = by_region.get(ocs["region"])
        if entry is None:
            shown = reader.shown_circuits(ocses[ocs["name"]][0])
            entry = {"circuits": [name.split("~") for name in shown]}
        ocs["circuits"] = entry.pop("circuits", None)
        ocs["dark"] = entry.pop("dark", [])
    inspection["access"] = [*access_entries(wiring, run_dir)]
    return inspection


def far_end(fabric: Fabric, nic: Nic) -> Json:
    """Return where a NIC's other end is: `of` which switch, and its `ports` there.

    Those of an OCS are an input and an output.
    """
    if nic.kind is NicKind.OPTICAL:
        region = fabric.region_of[nic.server]
        ocs, port = fabric.ocses[region], ocs_port(fabric, nic)
        return {"of": ocs.name, "ports": [port, port + ocs.ports]}
    leaf = fabric.eps_wiring.leaf_of_nic(nic)
    return {"of": leaf, "ports": [fabric.openflow.ports(leaf)[str(nic)]]}


def ocs_entry(described: Json, ocs: Ocs) -> Json:
    """Return the description of an OCS; one that isn't emulated is at its own address."""
    if ocs.control.address is None:
        return described
    shown = {key: value for key, value in described.items() if key != "scpi_port"}
    return shown | {"management": _place(ocs.control)}


def access_entries(wiring: FabricWiring, run_dir: RunDirectory) -> Iterator[Json]:
    """Yield the management interfaces of a fabric: `of` what, `interface`, `address`, `login`."""
    for region, ocs in wiring.fabric.ocses.items():
        if ocs.control.address is not None:
            login = ocs.control.user or "that of the factory"
            yield _access(ocs.name, ocs.control.driver.upper(), _place(ocs.control), login)
            continue
        for name, dialect in ocs_dialects().items():
            login = ", ".join(f"{user.name}/{user.password}" for user in dialect.accounts) or "none"
            if dialect.accounts and ocs.profile.users is not None:
                login = "users of its profile"
            address = f"{wiring.management.ocs_address(region)}:{dialect.port}"
            yield _access(ocs.name, name.upper(), address, login)
    for controlled in wiring.controlled:
        name = f"controller of {controlled.name if controlled else 'eps'}"
        yield _access(
            name, "HTTP", _northbound(wiring, controlled), f"token in {run_dir.token_file}"
        )


def _place(control: OcsControl) -> str:
    """Return host and port of an OCS that is not emulated."""
    host, port = device_address(control, "")
    return f"{host}:{port}"


def _access(of: str, interface: str, address: str, login: str) -> Json:
    return {"of": of, "interface": interface, "address": address, "login": login}


def _controller(run_dir: RunDirectory, wiring: FabricWiring, region: Region | None) -> Json:
    """Return the state of a region's controller, or of the EPS's if `region` is None."""
    openflow = wiring.management.openflow_endpoint(region)
    entry: Json = {
        "region": region.name if region else "eps",
        "openflow": f"{openflow[0]}:{openflow[1]}",
        "northbound": _northbound(wiring, region),
    }
    if stopped := stopped_controller(run_dir, region):
        return entry | {"fault": stopped}
    try:
        with ControllerClient.of_region(wiring, region) as client:
            entry["health"] = client.health()
            entry["rules"] = client.rules()
            entry["counters"] = client.counters()
            if region is not None and region.ocs is not None:
                entry["circuits"] = [circuit.split("~") for circuit in client.circuits()]
                entry["dark"] = [circuit.split("~") for circuit in client.dark()]
    except ControlError as error:
        entry["fault"] = str(error)
    return entry


def _external(run_dir: RunDirectory, wiring: FabricWiring) -> list[Json]:
    """Return where switches connect to a controller of others, if any do, and how many have."""
    if wiring.controller is ControlPlane.OWN:
        return []
    region = "all" if wiring.controller is ControlPlane.EXTERNAL else "eps"
    host, port = endpoint = wiring.management.openflow_endpoint(None)
    counts = namespaces.run_in(process_id(run_dir), namespaces.connection_counts)
    place = {"region": region, "openflow": f"{host}:{port}", "external": True}
    return [place | {"connected": counts[endpoint]}]


def _northbound(wiring: FabricWiring, region: Region | None) -> str:
    host, port = wiring.management.northbound_endpoint(region)
    return f"{'https' if wiring.control_tls else 'http'}://{host}:{port}"


def inspection_lines(inspection: Json) -> list[str]:
    """Format the JSON of `inspect_fabric` as lines of text."""
    lost = inspection.get("lost_machines", {})
    datapaths = {one["name"]: one["datapath_id"] for one in inspection.get("switches", ())}
    eps = datapaths.keys() - {server["name"] for server in inspection["servers"]}
    return [
        f"fabric {inspection['fabric']}",
        *(_server_line(server, datapaths) for server in inspection["servers"]),
        *(f"  {name}  datapath {datapaths[name]}" for name in datapaths if name in eps),
        *map(_ocs_line, inspection["ocs"]),
        *map(_controller_line, inspection["controllers"]),
        *map(_process_line, inspection["processes"]),
        *map(_process_line, inspection.get("ended", ())),
        *_access_lines(inspection.get("access", [])),
        *(f"  machine {name} is lost: {why}" for name, why in lost.items()),
    ]


def _access_lines(entries: Sequence[Json]) -> list[str]:
    """Return the management interfaces as a table."""
    keys = ("of", "interface", "address", "login")
    rows = [[str(entry[key]) for key in keys] for entry in entries]
    if rows:
        rows.insert(0, ["access to", "by", "at", "login"])
    return [f"  {line}" for line in aligned(rows)]


def _server_line(server: Json, datapaths: Mapping[str, int]) -> str:
    nics = " ".join(map(_nic_text, server["nics"]))
    addresses = f"{server['addresses'][0]}..{server['addresses'][-1].rsplit('.', 1)[1]}"
    place = f"  container {container['name']}" if (container := server.get("container")) else ""
    head = f"  {server['name']}  "
    switch = f"  datapath {datapaths[server['name']]}" if server["name"] in datapaths else ""
    text = f"{addresses}  management {server['management']}{switch}  {nics}{place}"
    return head + wrapped(text, len(head))


def _nic_text(nic: Json) -> str:
    """Return a NIC with the port at its far end (input/output of an OCS), its rate, and a fault."""
    far = nic.get("far")
    end = f"->{far['of']}:{'/'.join(map(str, far['ports']))}" if far else ""
    fault = "" if nic["carrier"] else ", no carrier"
    return f"{nic['name']}{end}({rate_text(nic['rate_bps'])}{fault})"


def _ocs_line(ocs: Json) -> str:
    lit, dark = (
        " ".join("~".join(ends) for ends in ocs[key] or ()) for key in ("circuits", "dark")
    )
    head = f"  {ocs['name']}  "
    none = "unknown" if ocs["circuits"] is None else "no circuits"
    light = [f"lit: {lit or none}", *([f"dark: {dark}"] if dark else [])]
    place = ocs["management"]
    at = f"SCPI {place}:{ocs['scpi_port']}" if "scpi_port" in ocs else f"not emulated, at {place}"
    parts = [f"{ocs['ports']} ports, {at}", *light]
    return head + f"\n{' ' * len(head)}".join(wrapped(text, len(head)) for text in parts)


def _process_line(process: Json) -> str:
    place = f" on {process['machine']}" if "machine" in process else ""
    state = f"ended ({end_text(process['status'])})" if "status" in process else process["pid"]
    return f"  process {process['name']}{place}  {state}"


def _controller_line(controller: Json) -> str:
    head = f"  controller of {controller['region']}  "
    endpoints = f"OpenFlow {controller['openflow']}"
    if "external" in controller:
        state = (
            f"not the fabric's own, {controller['connected']} switches of this machine connected"
        )
        return head + wrapped(f"{endpoints}  {state}", len(head))
    state = controller.get("fault") or f"{len(controller['rules'])} rules"
    endpoints += f", {controller['northbound']}"
    return head + wrapped(f"{endpoints}  {state}", len(head))
