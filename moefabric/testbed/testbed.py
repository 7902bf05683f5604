"""The testbed of a run: a running fabric with its controllers and its connected agents."""

import logging
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.liveness import LivenessMonitor
from moefabric.controller.client import ControllerClient, wait_for_controllers
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import AgentError, ControlError, ServerLossError, UnsupportedError
from moefabric.core.flows import PacedFlow, Share, Split, loss_text
from moefabric.core.machines import MachinePlacement
from moefabric.core.paths import (
    arrival_number,
    dscp,
    nic_address,
    nic_number,
    path_names,
    relay_paths,
    relay_root,
)
from moefabric.core.port_counts import counted_ports
from moefabric.core.protocols import PortCounters
from moefabric.core.topology import Fabric
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.transport import PACED, TCP, Transport
from moefabric.core.units import NS_PER_S
from moefabric.emulator.congestion.paced import paced
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
from moefabric.emulator.fabric.run_directories import hold
from moefabric.planner.arrays import circuit_matrix
from moefabric.planner.horizon import Horizon
from moefabric.planner.sending.flow_pacing import merge_circuits
from moefabric.results.records.records import CircuitChange
from moefabric.runtime import structured_log
from moefabric.runtime.run_directory import ControlPlane, FabricWiring, RunDirectory
from moefabric.testbed.fabric_processes import (
    RESERVE,
    agent_hosts,
    connect_agent,
    fabric_processes,
    up_timeout_s,
    with_shells,
)

if TYPE_CHECKING:
    from moefabric.config.fabric import WiringSpec

T = TypeVar("T")
log = logging.getLogger(__name__)

_CONNECT_S: Final = 10.0
_CONNECT_SERVER_S: Final = 0.3
"""Seconds that connections may take to open, plus a time for each server."""
_COUNTERS_S: Final = 30.0
_COUNTERS_SERVER_S: Final = 0.05
"""Seconds in which the fabric process hands over its counters, plus a time for each server."""
_CONGESTION_CONTROLS: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
CONTROLLER_TIMEOUT_S: Final = 10.0
PROBE_S: Final = 0.2
"""Seconds that a controller that was away may take to say that it is ready."""
SILENCE_S: Final = 2.0
SILENCE_SERVER_S: Final = 0.05
"""Seconds that a server with a backup may be silent, plus a time for each server."""
WARM_UP_BYTES: Final = 128 * 1024
WARM_UP_S: Final = 30.0
"""First bytes of each connection, and their timeout in addition to ten times the wire time."""


def data_paths(
    fabric: Fabric,
    pairs_between_regions: Iterable[tuple[str, str]] = (),
    addresses: Mapping[str, str] | None = None,
) -> list[DataPath]:
    """Return the persistent connections of a fabric; replies return by the same NICs.

    Every pair of servers of a region has one connection for each optical NIC of the sender, each
    path over the EPS and each relay tree of another server, or its agent. Pairs with a backup
    server and `pairs_between_regions` have those over the EPS.

    By default, each server has one address for all of its NICs: the kernel counts the neighbours of
    all namespaces together, and has room for 1,024 (arp(7), gc_thresh3). Where each GPU has its own
    NIC, a NIC has its GPU's address, and a pair has a connection for each two NICs.
    """
    backups = set(fabric.backup_servers)
    groups = fabric.ep_groups.values()
    electrical = [
        *(pair for pair in permutations(fabric.servers, 2) if backups & set(pair)),
        *pairs_between_regions,
    ]
    within = [pair for group in groups for pair in permutations(group, 2)]
    paths = [(*pair, nic.path) for pair in within for nic in fabric.optical_nics(pair[0])]
    paths += [(*p, name) for p in within + electrical for name in path_names(fabric, *p)]
    paths += [(*pair, path) for pair in within for path in relay_paths(fabric, *pair)]
    return [data_path(fabric, *path, addresses) for path in paths]


def data_path(
    fabric: Fabric, src: str, dst: str, path: str, addresses: Mapping[str, str] | None = None
) -> DataPath:
    """Return the connection of a path, as `data_paths` does.

    Replies over the EPS are marked for the NICs of the path. Unmarked replies take the circuit if
    there is one, and else the receiver's first NIC.
    """

    def address(server: str, nic: int = 0) -> str:
        return addresses[server] if addresses else nic_address(fabric, server, nic)

    if fabric.forwarding_by_hosts and (relay := relay_root(fabric, src, path)):
        return DataPath(src, dst, path, address(relay), relay=relay)
    near, far, (_, dot, spine) = nic_number(path), arrival_number(path), path.partition(".")
    reply_dscp = dscp(fabric, f"e{far}{dot}{spine}") if path[0] == "e" else 0
    source = address(src, near) if fabric.nic_per_gpu else ""
    return DataPath(src, dst, path, address(dst, far), dscp(fabric, path), reply_dscp, source)


def _open_congestion_windows(fabric: Fabric, fleet: Fleet, connections: Sequence[DataPath]) -> None:
    """Send some bytes over every connection; raises AgentError if one can't carry them.

    TCP starts with ten segments in flight and doubles them every round trip. Behind a full NIC,
    round trips are long: a flow paced at a NIC's whole rate would reach that rate only half-way
    through its first collective. The window stays open: tcp_slow_start_after_idle is 0 on servers.
    """
    unpaced = [PacedFlow(p.src, p.dst, p.path, WARM_UP_BYTES, None) for p in connections]
    wires = max(1, fabric.electrical) * fabric.scale.rate_bps(min(fabric.rates_bps))
    expected_s = 8 * WARM_UP_BYTES * len(unpaced) / len(fabric.servers) / wires
    records = fleet.run(0, unpaced, None, WARM_UP_S + 10 * expected_s)
    if lost := [record for record in records if not record.ok]:
        raise AgentError(f"first bytes from {loss_text(lost)}")


def _open_windows_of_survivors(
    fabric: Fabric, fleet: Fleet, connections: Sequence[DataPath]
) -> None:
    """Open congestion windows; drop servers that are lost meanwhile, which the job replaces."""
    try:
        _open_congestion_windows(fabric, fleet, connections)
    except ServerLossError as loss:
        fleet.drop(loss.servers)
        fleet.abandon(0)
        fleet.reconnect()


def connect_agents(fabric: Fabric, fleet: Fleet, connections: Sequence[DataPath]) -> None:
    """Open connections between agents, and their congestion windows."""
    fleet.connect(connections, _connect_timeout_s(fabric))
    _open_congestion_windows(fabric, fleet, connections)


def _connect_timeout_s(fabric: Fabric) -> float:
    """Return how long the connections of all agents may take to open."""
    return _CONNECT_S + _CONNECT_SERVER_S * len(fabric.servers)


def liveness_monitor(fabric: Fabric) -> LivenessMonitor:
    """Return the monitor that detects lost servers, with a short timeout if there are backups.

    Agents may also be silent because the machine is busy. Without backups, a silent server
    therefore counts as lost only after a long time.
    """
    if not fabric.backup_servers:
        return LivenessMonitor()
    return LivenessMonitor(silence_s=SILENCE_S + SILENCE_SERVER_S * len(fabric.servers))


class HttpRegionController:
    """A region's controller under one policy, reached through its northbound interface."""

    def __init__(self, client: ControllerClient, policy: str) -> None:
        self._client, self._policy = client, policy

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon | None = None) -> CircuitChange:
        """Light the circuits that the demand deserves, given the all-to-alls to come.

        Returns when the last rule is confirmed. Raises ControlError if that fails.
        """
        known = None if horizon is None else asdict(horizon)
        reply = self._client.demand(demand.array.tolist(), self._policy, all_to_alls=known)
        after = CircuitSet.of(reply["circuits_after"])
        return CircuitChange(
            CircuitSet.of(reply["circuits_before"]),
            after,
            ReconfigurationPhases(**reply["phases"]),
            CircuitSet.of(reply.get("dark", [])),
            split=_planned_split(reply.get("plan"), demand, after),
            error=reply.get("policy_fault", ""),
        )

    def ready(self, deadline_s: float) -> bool:
        """Return whether the controller answers and has all of its devices within that time."""
        with self._client.with_timeout(PROBE_S) as probe, suppress(ControlError):
            probe.wait_ready(deadline_s)
            return True
        return False

    def relied_on(self) -> CircuitSet:
        """Return the circuits that have rules; raises ControlError if there is no answer."""
        with self._client.with_timeout(PROBE_S) as probe:
            return CircuitSet.of(probe.circuits())


def _planned_split(
    plan: Mapping[str, Any] | None, demand: DemandMatrix, circuits: CircuitSet
) -> Split | None:
    """Return the split of a controller's plan, if its circuits are those that are lit."""
    if plan is None or plan["circuits"] != circuit_matrix(demand.servers, circuits).tolist():
        return None
    return Split(tuple(map(Share.from_json, plan["split"])))


class Controllers:
    """The controllers of all regions, each called by a thread of its own.

    Attributes:
        clients: Their clients, by region.
        faults: Why `light_for` lit no circuits, by policy; each reason once.
    """

    def __init__(self, clients: Mapping[str, ControllerClient]) -> None:
        self.clients, self.faults = clients, dict[str, list[str]]()
        self._threads = ThreadPoolExecutor(max(1, len(clients)), thread_name_prefix="controllers")

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        for client in self.clients.values():
            client.close()

    def under_policy(self, policy: str) -> dict[str, HttpRegionController]:
        """Return each region's controller under a policy."""
        return {name: HttpRegionController(client, policy) for name, client in self.clients.items()}

    def circuits(self) -> CircuitSet:
        """Return the circuits that have rules."""
        names = self._call_all(lambda _region, client: client.circuits())
        return merge_circuits(map(CircuitSet.of, names))

    def requested_circuits(self) -> CircuitSet:
        """Return the circuits of the last requests, also those without light."""
        names = self._call_all(lambda _region, client: client.requested())
        return merge_circuits(map(CircuitSet.of, names))

    def clear_circuits(self) -> None:
        """Remove all circuits of all regions."""
        self._call_all(lambda _region, client: client.light([]))

    def restore(self, fabric: Fabric, circuits: CircuitSet) -> CircuitSet:
        """Light the circuits of a run that goes on, and return them."""

        def light(region: str, client: ControllerClient) -> None:
            servers = fabric.ep_groups[region]
            client.light([str(circuit) for circuit in circuits if circuit.a.server in servers])

        self._call_all(light)
        return circuits

    def light_for(self, policy: str, demand: DemandMatrix, fabric: Fabric) -> CircuitSet:
        """Light the circuits that a demand of all regions deserves, and return the lit circuits."""
        changes = self.reconfigure(policy, demand, fabric)
        faults = self.faults.setdefault(policy, [])
        new = [f"{region}: {change.error}" for region, change in changes.items() if change.error]
        faults += [fault for fault in new if fault not in faults]
        return merge_circuits(change.after for change in changes.values())

    def reconfigure(
        self, policy: str, demand: DemandMatrix, fabric: Fabric
    ) -> dict[str, CircuitChange]:
        """Have each region light the circuits that its part of a demand deserves."""

        def change(region: str, client: ControllerClient) -> CircuitChange:
            owed = demand.submatrix(fabric.ep_groups[region])
            return HttpRegionController(client, policy).reconfigure(owed)

        return dict(zip(self.clients, self._call_all(change), strict=True))

    def _call_all(self, call: Callable[[str, ControllerClient], T]) -> list[T]:
        return list(self._threads.map(call, self.clients.keys(), self.clients.values()))


def region_controllers(
    wiring: FabricWiring, timeout_s: float = CONTROLLER_TIMEOUT_S
) -> Controllers:
    """Return the controllers of a running fabric's regions that are emulated and no backups."""
    clients = {}
    for region in wiring.fabric.regions:
        if not (region.backup or region.modelled):
            limit_s = timeout_s + 2 * region.moving_ns / NS_PER_S
            clients[region.name] = ControllerClient.of_region(wiring, region, limit_s)
    return Controllers(clients)


def descriptors_needed(paths: Iterable[DataPath]) -> Counter[str]:
    """Return the descriptors that each server's agent needs to keep all paths open."""
    needed = Counter[str]()
    for path in paths:
        needed.update([path.src, path.dst])
        if path.relay:
            needed[path.relay] += 2
    return Counter({server: count + RESERVE for server, count in needed.items()})


def check_descriptor_limit(
    paths: Iterable[DataPath], hosts: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Check that agents may open as many descriptors as the paths need.

    Args:
        hosts: The processes that agents share, by server.

    Raises:
        UnsupportedError: if the hard limit of this process, which agents inherit, is lower.
    """
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = Counter[str]()
    for server, count in descriptors_needed(paths).items():
        needed[hosts.get(server, f"the agent of {server}")] += count
    for name, count in needed.most_common(1):
        if limit != resource.RLIM_INFINITY and count > limit:
            remedy = ", `agents: separate`" if hosts else ""
            raise UnsupportedError(
                f"{name} needs {count} descriptors for its connections, and this process may open "
                f"{limit}: raise the hard limit (`ulimit -Hn {count}` as root, `nofile` in "
                f"/etc/security/limits.conf or `ulimits` of the container){remedy}, or use fewer "
                "servers or NICs"
            )


@contextmanager
def port_counters(fabric: Fabric) -> Iterator[PortCounters]:
    """Read the counters of a running fabric's NICs, OCS ports and uplinks, in this order.

    A fabric that has just come up answers late on a busy machine.
    """
    run_dir, ports = RunDirectory.of_fabric(fabric.name), counted_ports(fabric)
    reply_s = _COUNTERS_S + _COUNTERS_SERVER_S * len(fabric.servers)
    with closing(EmulatedPortCounters(run_dir, ports, reply_s=reply_s)) as counters:
        yield counters


def _open_window(undo: ExitStack) -> str | None:
    """Return the congestion control of paced connections; None if the kernel takes none in BPF."""
    try:
        return undo.enter_context(paced())
    except UnsupportedError as error:
        log.info("paced connections use the transport's congestion control: %s", error)
        return None


@contextmanager
def ready_transport(transport: Transport) -> Iterator[str]:
    """Prepare a transport; yield the name of its congestion control until the end of the `with`.

    `PACED` keeps its window open and starts on time (`emulator.congestion.paced`) where the
    kernel takes congestion controls in BPF; elsewhere it is Reno.

    Raises:
        UnsupportedError: This kernel lacks the congestion control.
    """
    with ExitStack() as undo:
        name = _open_window(undo) if transport == PACED else None
        if name is None:
            name = undo.enter_context(transport.prepared())
        try:  # a privileged process loads the module by this
            with socket.socket() as probe:
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            has = _CONGESTION_CONTROLS.read_text().split()
            missing = f"this kernel has no congestion control {name!r}, but {', '.join(has)}"
            raise UnsupportedError(
                f"transport {transport.name}: {missing}: load its module (modprobe tcp_{name})"
            ) from error
        yield name


def start_fabric(
    fabric: Fabric,
    spec: "WiringSpec | None" = None,
    placement: MachinePlacement | None = None,
    external: frozenset[str] = frozenset(),
) -> FabricWiring:
    """Start a fabric, or find it running; a new one ends with this process.

    Args:
        spec: Switches, containers, real hosts and certificates. Default: all is emulated.
        placement: The machines that carry the fabric together. Default: this one alone.
        external: The roles, `ocs` and `controller`, whose processes are started by others.
    """
    wiring = replace(lifecycle.wanted(fabric), placement=placement)
    if spec is not None:
        wiring = replace(
            wiring,
            switch=spec.switch,
            containers=spec.containers,
            hosts=with_shells(fabric.name, spec.real_hosts),
            control_tls=spec.control_tls,
            shared_agents=spec.agents == "shared",
            controller=ControlPlane(spec.controller),
        )
    return lifecycle.up(
        wiring, fabric_processes, up_timeout_s(fabric), external=external, owner=os.getpid()
    )


@contextmanager
def running_testbed(
    fabric: Fabric,
    spec: "WiringSpec | None" = None,
    placement: MachinePlacement | None = None,
    external: frozenset[str] = frozenset(),
    *,
    transport: Transport = TCP,
    prepare: Callable[[Controllers], object] | None = None,
    timeout_s: float = CONTROLLER_TIMEOUT_S,
    pairs_between_regions: Iterable[tuple[str, str]] = (),
) -> Iterator[tuple[FabricWiring, Fleet, Controllers]]:
    """Bring a fabric up, and take it down at the end of the `with`.

    Args:
        fabric: The fabric to bring up.
        spec: As in `start_fabric`.
        placement: As in `start_fabric`.
        external: As in `start_fabric`.
        transport: Decides about the agents' connections.
        prepare: Called before connections open, to light their circuits if there is no EPS.
        timeout_s: Seconds that a controller may take to reply, plus the settling of its circuits.
        pairs_between_regions: Servers of different regions that are connected too.

    Yields:
        The fabric's wiring, its agents, connected to each other, and its regions' controllers.
    """
    connections = data_paths(fabric, pairs_between_regions)
    check_descriptor_limit(connections)
    with ExitStack() as undo:
        congestion_control = transport.congestion_control
        if placement is None:  # the kernels of other machines have what they have
            congestion_control = undo.enter_context(ready_transport(transport))
        undo.callback(lifecycle.down, fabric.name, force=True)
        wiring = start_fabric(fabric, spec, placement, external)
        run_dir = RunDirectory.of_fabric(fabric.name)
        undo.enter_context(structured_log.logged("run", run_dir.log_folder))
        undo.enter_context(hold(run_dir))
        if placement is None:
            check_descriptor_limit(connections, agent_hosts(wiring))
        channels = [connect_agent(wiring, run_dir, server) for server in fabric.servers]
        fleet = undo.enter_context(Fleet(channels, liveness=liveness_monitor(fabric)))
        controllers = undo.enter_context(closing(region_controllers(wiring, timeout_s)))
        wait_for_controllers(wiring, up_timeout_s(fabric))
        if prepare is not None:
            prepare(controllers)
        fleet.connect(
            connections,
            deadline_s=_connect_timeout_s(fabric),
            congestion=congestion_control,
            sndbuf=transport.send_buffer_bytes,
        )
        _open_windows_of_survivors(fabric, fleet, connections)
        yield wiring, fleet, controllers
