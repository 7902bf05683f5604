"""A view of a running fabric: servers, addresses, regions and state."""

from functools import cached_property

from moefabric.api.running_fabrics import not_up
from moefabric.core.errors import FabricError, SpecError
from moefabric.core.topology import Fabric, Region
from moefabric.results.parts import Json
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed.fabric_reader import FabricReader, ProcessUsage
from moefabric.testbed.inspection import inspect_fabric, inspection_lines

__all__ = ["FabricReader", "FabricView", "ProcessUsage", "inspection_lines"]


class FabricView:
    """A running fabric, found by its name.

    Attributes:
        name: Name of the fabric.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def run_directory(self) -> RunDirectory:
        """Directory with the wiring, the sockets and the logs of the fabric."""
        return RunDirectory.of_fabric(self.name)

    @cached_property
    def wiring(self) -> FabricWiring:
        """The fabric as its controllers, agents and commands know it.

        Raises:
            FabricError: If the fabric isn't up, or another version of moefabric has made it.
        """
        self.run_directory.check_version()
        try:
            return FabricWiring.from_json(self.run_directory.wiring_file.read_text())
        except FileNotFoundError as error:
            raise FabricError(not_up(self.name)) from error

    @property
    def fabric(self) -> Fabric:
        """Servers, NICs, regions and switches."""
        return self.wiring.fabric

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of the servers."""
        return self.fabric.servers

    def address(self, server: str, gpu: int = 0) -> str:
        """Return the address of a server's GPU, by which programs reach the server."""
        if server not in self.fabric.server_index:
            raise SpecError([("", f"{server} is not one of {', '.join(self.servers)}")])
        return self.fabric.addressing.addresses(server)[gpu]

    def inspect(self) -> Json:
        """Return servers, NICs, switches, circuits, rules, counters and processes.

        The keys are those of `moefabric inspect --json`.
        """
        return inspect_fabric(self.name)

    def reader(self, reply_s: float = 3.0) -> FabricReader:
        """Return a reader of the fabric's controllers, counters, agents and processes.

        Args:
            reply_s: Time that a controller, or all agents together, may take to answer.
        """
        return FabricReader(self.name, self.wiring, reply_s)

    def region(self, name: str) -> Region:
        """Return the region with this name.

        Raises:
            SpecError: If there is none.
        """
        regions = {region.name: region for region in self.fabric.regions}
        if name not in regions:
            raise SpecError([("region", f"{name} is not one of {', '.join(regions)}")])
        return regions[name]
