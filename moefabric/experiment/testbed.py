"""The testbed: one running fabric with its controllers and agents, as an experiment holds it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import permutations
from typing import Final, TypeVar

from agents.channel import local
from agents.fleet import Fleet, Way
from agents.pulse import Pulse
from controller.client import ControllerClient, await_controllers
from emulator import lifecycle
from emulator.run_dir import held
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import AgentError, ControlError, LostError
from moefabric.experiment.patience import PatientLight
from moefabric.experiment.programs import UP_TIMEOUT_S, processes
from moefabric.experiment.runs import Moved
from moefabric.experiment.sending import PacedFlow, lit_together
from moefabric.failure_log import Do
from moefabric.management import Management, RunDir, Wiring
from moefabric.records import Phases
from moefabric.seams import Agents
from moefabric.topology import Fabric, Region, dscp
from moefabric.units import NS_PER_S

T = TypeVar("T")
Seen = Callable[[str, Do, str], object]
"""Is told of a region what happened to its controller."""

WIRE_S: Final = 10.0
WIRE_SERVER_S: Final = 0.3
"""How long connections may take to open, and how much longer for each server."""
PATIENCE_S: Final = 10.0
SILENT_S: Final = 2.0
SILENT_SERVER_S: Final = 0.05
"""How long a server may say nothing where there are others to replace it, and how much longer for each server of the fabric."""
GLANCE_S: Final = 0.2
"""How long a controller may take to say that it is there."""
OPENING_BYTES: Final = 128 * 1024
OPENING_S: Final = 30.0
"""What each connection carries before anything is measured, and how long that may take besides ten times its time on the wire."""


def ways(fabric: Fabric, beyond: Iterable[tuple[str, str]] = ()) -> list[Way]:
    """A persistent connection for every pair of servers in a region and every NIC of the sender; answers follow the light.

    Pairs `beyond` regions have one for every electrical NIC.

    Backup servers are joined to all others by electrical NICs. To one address a server: the kernel counts the neighbours of all namespaces together, and has room for 1,024 (arp(7), gc_thresh3).
    """
    address = {server: fabric.addresses(server)[0] for server in fabric.servers}
    made = [
        Way(src, dst, nic.path, address[dst], dscp(nic.path))
        for servers in fabric.groups.values()
        for src, dst in permutations(servers, 2)
        for nic in fabric.nics(src)
    ]
    standing_in = [
        Way(src, dst, nic.path, address[dst], dscp(nic.path))
        for src, dst in permutations(fabric.servers, 2)
        if {src, dst} & {*fabric.backups}
        for nic in fabric.electrical_nics(src)
    ]
    between = [
        Way(src, dst, nic.path, address[dst], dscp(nic.path))
        for src, dst in beyond
        for nic in fabric.electrical_nics(src)
    ]
    return made + standing_in + between


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


def _pulse(fabric: Fabric) -> Pulse:
    """How soon a silent server is given up: not in haste where nobody could replace it, for a busy machine keeps agents from answering too."""
    return Pulse(silence_s=SILENT_S + SILENT_SERVER_S * len(fabric.servers)) if fabric.backups else Pulse()


def _opened(fabric: Fabric, fleet: Fleet, connections: Sequence[Way]) -> None:
    """Let connections carry some bytes. Who is lost meanwhile is the job's affair."""
    try:
        open_windows(fabric, fleet, connections)
    except LostError as loss:
        fleet.leave(loss.servers)
        fleet.abandon(0)
        fleet.mend()


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


def _patience_s(region: Region, patience_s: float) -> float:
    """How long a region's controller may take to answer: until its light has settled, which dilation stretches, and a while."""
    return patience_s + (2 * (region.ocs.settle_ns + region.ocs.link_up_ns) / NS_PER_S if region.ocs else 0.0)


class ReliedOn(ControlledLight):
    """The same, for whoever has to go on without it when it is away."""

    def __init__(self, client: ControllerClient, policy: str) -> None:
        super().__init__(client, policy)
        self._glance = ControllerClient(client.address, GLANCE_S)

    def ready(self, deadline_s: float) -> bool:
        """Whether the controller answers, and has all it needs, within that time."""
        try:
            self._glance.wait_ready(deadline_s)
        except ControlError:
            return False
        finally:
            self._glance.close()
        return True

    def relied_on(self) -> CircuitSet:
        """The circuits that it has rules for. ControlError where it doesn't answer."""
        try:
            return CircuitSet.of(self._glance.circuits())
        finally:
            self._glance.close()


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

    def under(
        self, policy: str, patience_s: float = PATIENCE_S, seen: Seen = lambda _region, _do, _why: None
    ) -> dict[str, PatientLight]:
        """Each region's light under a policy; `seen` is told of controllers that are missed, and of how things went on."""
        return {
            region: PatientLight(ReliedOn(client, policy), patience_s, partial(seen, region))
            for region, client in self.clients.items()
        }

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
    fabric: Fabric,
    external: frozenset[str] = frozenset(),
    congestion: str = "cubic",
    switch: str = "auto",
    lay: Callable[[Lights], object] | None = None,
    patience_s: float = PATIENCE_S,
    beyond: Iterable[tuple[str, str]] = (),
) -> Iterator[tuple[Wiring, Fleet, Lights]]:
    """The fabric, up until the end of the `with`: its wiring, its agents wired to each other, the controllers of its regions.

    `external` names the roles, `ocs` and `controller`, whose processes are started by others; `congestion` is the connections' control;
    `switch` is what moves packets (`emulator.datapath.choose`); `lay` lights what connections need where there is no EPS;
    a controller may take `patience_s`, besides its light's settling, to do what it is asked for; pairs of servers `beyond` regions are joined too.
    """
    with ExitStack() as undo:
        undo.callback(lifecycle.down, fabric.name)
        run_dir = RunDir.named(fabric.name)
        ours = processes(Wiring(fabric, Management("198.18.0.0/24")), run_dir)
        outside = frozenset(process.name for process in ours if process.role in external)
        wiring = lifecycle.up(fabric, processes, UP_TIMEOUT_S, external=outside, switch=switch)
        undo.enter_context(held(run_dir))
        fleet = undo.enter_context(
            Fleet([local(server, run_dir.agent(server)) for server in fabric.servers], pulse=_pulse(fabric))
        )
        lights = Lights(
            {
                region.name: ControllerClient(
                    wiring.management.northbound(region), _patience_s(region, patience_s)
                )
                for region in fabric.regions
                if not region.backup
            }
        )
        undo.callback(lights.close)
        await_controllers(wiring, UP_TIMEOUT_S)
        if lay is not None:
            lay(lights)
        connections = ways(fabric, beyond)
        fleet.wire(
            connections, deadline_s=WIRE_S + WIRE_SERVER_S * len(fabric.servers), congestion=congestion
        )
        _opened(fabric, fleet, connections)
        yield wiring, fleet, lights
