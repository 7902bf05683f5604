"""The testbed: one running fabric with its controllers and agents, as an experiment holds it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import permutations
from typing import Final, TypeVar

from agents.channel import local
from agents.fleet import Fleet, Way
from controller.client import ControllerClient, await_controllers
from emulator import lifecycle
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import AgentError
from moefabric.experiment.programs import UP_TIMEOUT_S, processes
from moefabric.experiment.runs import Moved
from moefabric.experiment.sending import PacedFlow, lit_together
from moefabric.management import Management, RunDir, Wiring
from moefabric.records import Phases
from moefabric.seams import Agents
from moefabric.topology import Fabric, Region, dscp
from moefabric.units import NS_PER_S

T = TypeVar("T")

WIRE_S: Final = 10.0
WIRE_SERVER_S: Final = 0.3
"""How long connections may take to open, and how much longer for each server."""
PATIENCE_S: Final = 60.0
OPENING_BYTES: Final = 128 * 1024
OPENING_S: Final = 30.0
"""What each connection carries before anything is measured, and how long that may take besides ten times its time on the wire."""


def ways(fabric: Fabric) -> list[Way]:
    """A persistent connection for every pair of servers in a region and every NIC of the sender; answers follow the light.

    To one address a server: the kernel counts the neighbours of all namespaces together, and has room for 1,024 (arp(7), gc_thresh3).
    """
    address = {server: fabric.addresses(server)[0] for server in fabric.servers}
    return [
        Way(src, dst, nic.path, address[dst], dscp(nic.path))
        for region in fabric.regions
        for src, dst in permutations(region.servers, 2)
        for nic in fabric.nics(src)
    ]


def open_windows(fabric: Fabric, agents: Agents, connections: Sequence[Way]) -> None:
    """Let every connection carry some bytes once. AgentError where one can't.

    TCP starts with ten segments in flight and doubles them every round trip; behind a full NIC those are long, and a flow that is paced at a
    NIC's whole rate would reach it half-way through its first collective. The window stays open (tcp_slow_start_after_idle is 0 on servers).
    """
    greedy = [PacedFlow(way.src, way.dst, way.path, OPENING_BYTES, None) for way in connections]
    wires = max(1, fabric.electrical) * fabric.scale.rate_bps(fabric.nic_rate_bps)
    expected_s = 8 * OPENING_BYTES * len(greedy) / len(fabric.servers) / wires
    lost = [record for record in agents.run(0, greedy, None, OPENING_S + 10 * expected_s) if not record.ok]
    if lost:
        first = lost[0]
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise AgentError(f"first bytes from {first.src} to {first.dst} by {first.path}: {first.why}{more}")


class ControlledLight:
    """A region's light under a policy, moved by its controller."""

    def __init__(self, client: ControllerClient, policy: str) -> None:
        self._client, self._policy = client, policy

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """Light what the demand deserves; returns when the last rule is confirmed."""
        said = self._client.demand(demand.array.tolist(), self._policy)
        phases = Phases(**said["phases"])
        return Moved(
            CircuitSet.of(said["circuits_before"]),
            CircuitSet.of(said["circuits_after"]),
            phases,
            CircuitSet.of(said.get("dark", [])),
        )


def _patience_s(region: Region) -> float:
    """How long a region's controller may take to answer: until its light has settled, which dilation stretches, and a while."""
    return PATIENCE_S + (2 * (region.ocs.settle_ns + region.ocs.link_up_ns) / NS_PER_S if region.ocs else 0.0)


class Lights:
    """The controllers of all regions, each asked by a thread of its own."""

    def __init__(self, clients: Mapping[str, ControllerClient]) -> None:
        self.clients = clients
        self._threads = ThreadPoolExecutor(max(1, len(clients)), thread_name_prefix="controllers")

    def close(self) -> None:
        """Hang up."""
        self._threads.shutdown()
        for client in self.clients.values():
            client.close()

    def under(self, policy: str) -> dict[str, ControlledLight]:
        """Each region's light under a policy."""
        return {region: ControlledLight(client, policy) for region, client in self.clients.items()}

    def dark(self) -> None:
        """No light in any region."""
        self._all(lambda _region, client: client.light([]))

    def reconfigure(self, policy: str, demand: DemandMatrix, fabric: Fabric) -> CircuitSet:
        """Light what a demand of all regions deserves; what is lit then."""
        servers = {region.name: region.servers for region in fabric.regions}

        def one(region: str, client: ControllerClient) -> CircuitSet:
            return ControlledLight(client, policy).reconfigure(demand.of(servers[region])).after

        return lit_together(self._all(one))

    def _all(self, ask: Callable[[str, ControllerClient], T]) -> list[T]:
        return list(self._threads.map(ask, self.clients.keys(), self.clients.values()))


@contextmanager
def standing(
    fabric: Fabric, external: frozenset[str] = frozenset(), congestion: str = "cubic", switch: str = "auto"
) -> Iterator[tuple[Wiring, Fleet, Lights]]:
    """The fabric, up until the end of the `with`: its wiring, its agents wired to each other, the controllers of its regions.

    `external` names the roles, `ocs` and `controller`, whose processes are started by others; `congestion` is the connections' control;
    `switch` is what moves packets (`emulator.datapath.choose`).
    """
    with ExitStack() as undo:
        undo.callback(lifecycle.down, fabric.name)
        run_dir = RunDir.named(fabric.name)
        ours = processes(Wiring(fabric, Management("198.18.0.0/24")), run_dir)
        outside = frozenset(process.name for process in ours if process.role in external)
        wiring = lifecycle.up(fabric, processes, UP_TIMEOUT_S, external=outside, switch=switch)
        fleet = undo.enter_context(Fleet([local(server, run_dir.agent(server)) for server in fabric.servers]))
        lights = Lights(
            {
                region.name: ControllerClient(wiring.management.northbound(region), _patience_s(region))
                for region in fabric.regions
            }
        )
        undo.callback(lights.close)
        await_controllers(wiring, UP_TIMEOUT_S)
        connections = ways(fabric)
        fleet.wire(
            connections, deadline_s=WIRE_S + WIRE_SERVER_S * len(fabric.servers), congestion=congestion
        )
        open_windows(fabric, fleet, connections)
        yield wiring, fleet, lights
