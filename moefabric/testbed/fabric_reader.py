"""Reads the state of a running fabric: controllers, counters, agents, processes and machines."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from moefabric.agents.fleet.channel import read_statistics
from moefabric.controller.client import ControllerClient
from moefabric.core.circuits import circuits_from_cross_connects
from moefabric.core.errors import ControlError, FabricError
from moefabric.core.port_counts import PortReading, counted_nics
from moefabric.core.topology import Region
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import process_id
from moefabric.emulator.fabric.hardware_injection import lacks_power
from moefabric.emulator.fabric.other_machines import ask_parts
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
from moefabric.emulator.ocs import client as ocs_client
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
        reply_s: Time that a controller, or all agents together, may take to answer.
    """

    def __init__(self, name: str, wiring: FabricWiring, reply_s: float = 3.0) -> None:
        self._name, self._wiring, self._reply_s = name, wiring, reply_s
        self._run_dir = RunDirectory.of_fabric(name)
        self._counters: EmulatedPortCounters | None = None

    @property
    def controllers(self) -> list[Region | None]:
        """The regions with a controller of the fabric's own, and None for the EPS's."""
        return [*self._wiring.controlled]

    def ask(self, region: Region | None, question: Callable[[ControllerClient], T]) -> T:
        """Return a controller's answer.

        Raises:
            ControlError: If it doesn't answer in time.
        """
        with ControllerClient.of_region(self._wiring, region, self._reply_s) as client:
            return question(client)

    def controller_state(self, region: Region | None) -> Json:
        """Return whether a controller is `ready`, its `circuits`, those `dark`, and its counts.

        One that doesn't answer in time has no counts, but a `fault`.
        """
        try:
            return self.ask(region, ControllerClient.statistics)
        except ControlError as error:
            return {"ready": False, "circuits": [], "dark": [], "fault": str(error)}

    def circuits(self, region: Region) -> Json:
        """Return the names of `circuits` and `dark` ones of a region with an OCS.

        They are those of its controller, which may have a `fault`, or else those of the OCS.
        """
        if region in self._wiring.controlled:
            return self.controller_state(region)
        try:
            return {"circuits": self.shown_circuits(region), "dark": []}
        except FabricError as error:
            return {"circuits": [], "dark": [], "fault": str(error)}

    def shown_circuits(self, region: Region) -> list[str]:
        """Return the names of the circuits that an OCS shows.

        There are none of one that isn't emulated, or has no power.

        Raises:
            FabricError: If the OCS doesn't answer.
        """
        fabric, ocs = self._wiring.fabric, self._wiring.fabric.ocses[region]
        if ocs.control.address is not None or lacks_power(self._run_dir, ocs.name):
            return []
        shown = ocs_client.request(self._run_dir.ocs_socket(region), {"do": "show"})["ports"]
        inputs = [entry for entry in shown if entry["port"] <= ocs.ports and entry["partner"]]
        connects = [(entry["port"], entry["partner"]) for entry in inputs]
        return list(map(str, circuits_from_cross_connects(fabric, region, connects)))

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
        return {**replies.parts, **dict.fromkeys(replies.lost)}

    def close(self) -> None:
        """Release the counters."""
        if self._counters is not None:
            self._counters.close()
