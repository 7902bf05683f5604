"""The testbed: one running fabric with its controllers and agents, as an experiment holds it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations

from agents.channel import local
from agents.fleet import Fleet, Way
from controller.client import ControllerClient
from emulator import lifecycle
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.programs import UP_TIMEOUT_S, processes
from moefabric.experiment.replay import Moved
from moefabric.management import Management, RunDir, Wiring
from moefabric.records import Phases
from moefabric.topology import Fabric, dscp


def ways(fabric: Fabric) -> list[Way]:
    """A persistent connection for every pair of servers in a region and every NIC of the sender; answers follow the light."""
    made = []
    for region in fabric.regions:
        for src, dst in permutations(region.servers, 2):
            addresses = fabric.addresses(dst)
            for number, nic in enumerate(fabric.nics(src)):
                made.append(Way(src, dst, nic.path, addresses[number % len(addresses)], dscp(nic.path)))
    return made


class ControlledLight:
    """A region's light under a policy, moved by its controller."""

    def __init__(self, client: ControllerClient, policy: str) -> None:
        self._client, self._policy = client, policy

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """Light what the demand deserves; returns when the last rule is confirmed."""
        said = self._client.demand(demand.array.tolist(), self._policy)
        phases = Phases(**said["phases"])
        return Moved(CircuitSet.of(said["circuits_before"]), CircuitSet.of(said["circuits_after"]), phases)


@contextmanager
def standing(
    fabric: Fabric, external: frozenset[str] = frozenset(), congestion: str = "cubic"
) -> Iterator[tuple[Wiring, Fleet, ControllerClient]]:
    """The fabric, up until the end of the `with`: its wiring, its agents wired to each other, its (only) region's controller.

    `external` names the roles, `ocs` and `controller`, whose processes are started by others; `congestion` is the connections' control.
    """
    with ExitStack() as undo:
        undo.callback(lifecycle.down, fabric.name)
        run_dir = RunDir.named(fabric.name)
        ours = processes(Wiring(fabric, Management("198.18.0.0/24")), run_dir)
        outside = frozenset(process.name for process in ours if process.role in external)
        wiring = lifecycle.up(fabric, processes, UP_TIMEOUT_S, external=outside)
        fleet = undo.enter_context(Fleet([local(server, run_dir.agent(server)) for server in fabric.servers]))
        client = ControllerClient(wiring.management.northbound(fabric.regions[0]))
        client.wait_ready(UP_TIMEOUT_S)
        fleet.wire(ways(fabric), congestion=congestion)
        yield wiring, fleet, client
