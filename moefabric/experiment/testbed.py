"""The testbed: one running fabric with its controllers and agents, as an experiment holds it."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Final

from agents.channel import local
from agents.fleet import Fleet, Way
from controller.client import ControllerClient
from emulator import lifecycle
from emulator.processes import OUTER, Process, Role
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.replay import Moved
from moefabric.management import Management, RunDir, Wiring
from moefabric.records import Phases
from moefabric.topology import Fabric, dscp

UP_TIMEOUT_S: Final = 60.0


def processes(wiring: Wiring, run_dir: RunDir) -> list[Process]:
    """The programs of a fabric: a controller for each region and for the EPS, an OCS device a region, an agent a server."""
    import agents

    fabric, python = wiring.fabric, sys.executable
    control = (python, "-m", "controller", "--run-dir", str(run_dir.path))
    made = (
        [Process("controller-eps", OUTER, (*control, "--eps"), role=Role.CONTROLLER)] if fabric.leaves else []
    )
    for region in fabric.regions:
        regional = (*control, "--region", region.name)
        made.append(Process(f"controller-{region.name}", OUTER, regional, role=Role.CONTROLLER))
        if region.ocs is not None:
            device = (python, "-m", "emulator.ocs", "--plant", str(run_dir.plant(region)))
            made.append(Process(region.ocs.name, region.ocs.name, device, role=Role.OCS))
    agent = str(Path(agents.__file__).parent / "agent.py")
    for server in fabric.servers:
        engine = (python, "-S", "-E", agent, "--name", server, "--control", str(run_dir.agent(server)))
        made.append(Process(f"agent-{server}", server, engine, role=Role.AGENT))
    return made


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
    fabric: Fabric, external: frozenset[str] = frozenset()
) -> Iterator[tuple[Wiring, Fleet, ControllerClient]]:
    """The fabric, up until the end of the `with`: its wiring, its agents wired to each other, its (only) region's controller.

    `external` names the roles, `ocs` and `controller`, whose processes are started by others.
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
        fleet.wire(ways(fabric))
        yield wiring, fleet, client
