"""Reads the state of a running fabric, and shows it as JSON and as text.

The state is that of controllers, counters, agents, processes and machines.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from moefabric.agents.fleet.channel import read_statistics
from moefabric.controller.client import ControllerClient
from moefabric.core.errors import ControlError
from moefabric.core.port_counts import PortReading, counted_nics
from moefabric.core.topology import Region
from moefabric.core.units import rate_text
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import process_id
from moefabric.emulator.fabric.other_machines import ask_parts
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
from moefabric.results.parts import Json
from moefabric.runtime.processes import ProcessUsage, usage_of
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.runtime.run_status import RunStatus, read_run_status

__all__ = ["FabricReader", "ProcessUsage"]

T = TypeVar("T")


class FabricReader:
    """The state of a running fabric, read anew by each call.

    Args:
        name: Name of the fabric.
        wiring: Its wiring.
        reply_s: Time that a controller, or all agents together, may take to answer.
    """

    def __init__(self, name: str, wiring: FabricWiring, reply_s: float = 3.0) -> None:
        self._name, self._wiring, self._reply_s = name, wiring, reply_s
        self._run_dir = RunDirectory.of_fabric(name)
        self._counters: EmulatedPortCounters | None = None

    @property
    def controllers(self) -> list[Region | None]:
        """The regions, each of which has a controller, and None for the EPS's controller."""
        fabric = self._wiring.fabric
        return [*fabric.regions, *([None] if fabric.leaves else [])]

    def ask(self, region: Region | None, question: Callable[[ControllerClient], T]) -> T:
        """Return a controller's answer.

        Raises:
            ControlError: If it doesn't answer in time.
        """
        with ControllerClient.of_region(self._wiring, region, self._reply_s) as client:
            return question(client)

    def hardware(self) -> Json:
        """Return servers with NICs, OCSes, processes, and machines that were lost."""
        return lifecycle.inspect(self._name)

    def ports(self, *, lost_are_zero: bool = False) -> PortReading:
        """Return the counters of all NICs, in the order of `counted_nics`.

        Args:
            lost_are_zero: Whether NICs of lost machines count as zero; else they are an error.
        """
        if self._counters is None:
            nics = [str(nic) for nic in counted_nics(self._wiring.fabric)]
            self._counters = EmulatedPortCounters(self._run_dir, nics, lost_are_zero=lost_are_zero)
        return self._counters.read()

    def queues(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counters of the queues of all ports."""
        return lifecycle.queues(self._name)

    def agents(self) -> Mapping[str, Any]:
        """Return the statistics of the agents that answer, by server."""
        servers = self._wiring.fabric.servers
        return read_statistics(
            {server: self._run_dir.agent_socket(server) for server in servers}, self._reply_s
        )

    def run_status(self) -> RunStatus | None:
        """Return the state of the run that uses the fabric; None without one."""
        return read_run_status(self._run_dir.run_status_file)

    def processes(self) -> dict[str, dict[str, ProcessUsage]]:
        """Return the resources of the processes by machine; this machine has the empty name."""
        listed = self.hardware()["processes"]
        pids = {entry["name"]: entry["pid"] for entry in listed if "machine" not in entry}
        usage = {"": usage_of({**pids, "fabric": process_id(self._run_dir)})}
        if self._run_dir.machines_socket.exists():
            for machine, reply in ask_parts(self._run_dir, {"do": "usage"}).parts.items():
                used = reply["usage"].items()
                usage[machine] = {name: ProcessUsage(**values) for name, values in used}
        return usage

    def machines(self) -> dict[str, Any]:
        """Return the clock of each other machine of the fabric; None for one that was lost."""
        if not self._run_dir.machines_socket.exists():
            return {}
        replies = ask_parts(self._run_dir, {"do": "clocks"})
        return {
            machine: None if machine in replies.lost else replies.parts[machine]
            for machine in dict.fromkeys((*replies.lost, *replies.parts))
        }

    def close(self) -> None:
        """Release the counters."""
        if self._counters is not None:
            self._counters.close()


def inspect_fabric(name: str) -> Json:
    """Return the JSON of `moefabric inspect`, with the circuits that each OCS itself reports.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    inspection = lifecycle.inspect(name)
    wiring = FabricWiring.from_json(RunDirectory.of_fabric(name).wiring_file.read_bytes())
    regions = FabricReader(name, wiring).controllers
    inspection["controllers"] = [_controller(wiring, region) for region in regions]
    by_region = {entry["region"]: entry for entry in inspection["controllers"]}
    for ocs in inspection["ocs"]:
        for key in ("circuits", "dark"):
            ocs[key] = by_region[ocs["region"]].pop(key, [])
    return inspection


def _controller(wiring: FabricWiring, region: Region | None) -> Json:
    """Return the state of a region's controller, or of the EPS's if `region` is None."""
    openflow = wiring.management.openflow_endpoint(region)
    northbound = wiring.management.northbound_endpoint(region)
    scheme = "https" if wiring.control_tls else "http"
    entry: Json = {
        "region": region.name if region else "eps",
        "openflow": f"{openflow[0]}:{openflow[1]}",
        "northbound": f"{scheme}://{northbound[0]}:{northbound[1]}",
    }
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


def inspection_lines(inspection: Json) -> list[str]:
    """Format the JSON of `inspect_fabric` as lines of text."""
    lost = inspection.get("lost_machines", {})
    return [
        f"fabric {inspection['fabric']}",
        *map(_server_line, inspection["servers"]),
        *map(_ocs_line, inspection["ocs"]),
        *map(_controller_line, inspection["controllers"]),
        *map(_process_line, inspection["processes"]),
        *(f"  machine {name} is lost: {why}" for name, why in lost.items()),
    ]


def _server_line(server: Json) -> str:
    nics = " ".join(
        f"{nic['name']}({rate_text(nic['rate_bps'])}{'' if nic['carrier'] else ', no carrier'})"
        for nic in server["nics"]
    )
    addresses = f"{server['addresses'][0]}..{server['addresses'][-1].rsplit('.', 1)[1]}"
    place = f"  container {container['name']}" if (container := server.get("container")) else ""
    return f"  {server['name']}  {addresses}  management {server['management']}  {nics}{place}"


def _ocs_line(ocs: Json) -> str:
    lit, dark = (" ".join("~".join(ends) for ends in ocs[key]) for key in ("circuits", "dark"))
    scpi = f"SCPI {ocs['management']}:{ocs['scpi_port']}"
    circuits = f"lit: {lit or 'no circuits'}" + (f"  dark: {dark}" if dark else "")
    return f"  {ocs['name']}  {ocs['ports']} ports, {scpi}  {circuits}"


def _process_line(process: Json) -> str:
    place = f" on {process['machine']}" if "machine" in process else ""
    return f"  process {process['name']}{place}  {process['pid']}"


def _controller_line(controller: Json) -> str:
    state = controller.get("fault") or f"{len(controller['rules'])} rules"
    endpoints = f"OpenFlow {controller['openflow']}, {controller['northbound']}"
    return f"  controller of {controller['region']}  {endpoints}  {state}"
