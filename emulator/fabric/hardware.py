"""All hardware of a fabric: made in order in a new network namespace, removed in reverse."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar, crossbar_refusal
from moefabric.emulator.crossbar.carrier import Carrier
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.fabric import links, management_uplink, run_directories
from moefabric.emulator.fabric.daemon_protocol import NODES, UpRequest
from moefabric.emulator.fabric.datapath import (
    ARGV,
    PRIORITY,
    DatapathKind,
    ElectricalSwitches,
    SwitchProcess,
)
from moefabric.emulator.fabric.host_names import hosts_text
from moefabric.emulator.fabric.other_machines import OtherParts
from moefabric.emulator.fabric.ovs import OvsSwitches
from moefabric.emulator.fabric.placed_plan import plans_of
from moefabric.emulator.fabric.plan import OcsPlan
from moefabric.emulator.fabric.plugged_hosts import plug_hosts, return_devices
from moefabric.emulator.fabric.programmed_links import ProgrammedLinks
from moefabric.emulator.fabric.server_containers import ServerContainers
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.marked_processes import kill_marked
from moefabric.emulator.linux.namespace_holders import NamespaceHolders
from moefabric.emulator.linux.processes import OUTER, ChildProcesses, ProcessRole, ProcessSpec
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.fd_handoff import HandoffServer, listen_in_namespace
from moefabric.runtime.processes import reap_orphans
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import BackgroundTask, Deadline

_CONTAINERS_S: Final = 60.0
_GRACE_S: Final = 0.3
"""Time between SIGTERM and SIGKILL."""
_EXTERNAL_S: Final = 60.0
"""Time that a process of others has to serve, once the fabric's own hardware is made."""


class Hardware:
    """Hardware of one fabric. `close` removes it, also when only a part has been made."""

    def __init__(
        self, run_dir: RunDirectory, request: UpRequest, on_stage: Callable[[str], None]
    ) -> None:
        """Make nothing yet; `on_stage` is called at the start of each stage."""
        self.run_dir, self.request, self._on_stage = run_dir, request, on_stage
        self.wiring = request.wiring
        self.whole_plan, self.plan = plans_of(self.wiring, request.machine)
        self.others = OtherParts(run_dir, self.wiring.placement, request.machine)
        self.deadline = Deadline.after(request.timeout_s)
        self.processes = ChildProcesses(run_dir)
        self.links = ProgrammedLinks(self.plan, self.processes)
        self.ocses: dict[str, HandoffServer] = {}
        self.pids: dict[str, int] = {}
        """Pid, by node, of a process in the node's namespaces."""
        self.remarks: list[str] = []
        """Abilities that this machine lacks, as texts."""
        self._undo = ExitStack()
        self._outer = self._undo.enter_context(namespaces.held())
        self._undo.callback(run_directories.abandon, run_dir)
        remove_uplink = partial(management_uplink.remove_leftovers, run_dir.name)
        self._undo.callback(namespaces.run_in, self._outer, remove_uplink)
        # Callbacks run in reverse: processes end before another fabric can get their addresses.
        self._undo.callback(self._kill_rest)
        self.containers = ServerContainers(run_dir, self.wiring)
        self._undo.callback(self.containers.close)

    def make(self) -> None:
        """Make all hardware and wait until it works.

        Raises:
            FabricError: names the place of the failure. The caller has to call `close`.
        """
        self._on_stage("management network")
        start_containers = partial(self.containers.start, links.TCP_SYSCTLS)
        containers = BackgroundTask("containers", start_containers)
        self._undo.callback(self._wait_containers, containers)
        self._make_management_network()
        self._undo.callback(self.processes.stop, _GRACE_S)
        self._undo.callback(self.others.stop)
        self._start_processes(OUTER)  # controllers take longest to start
        self._on_stage("servers")
        self._make_nodes(containers)
        switches = BackgroundTask(
            "switches", partial(self.switches.make, self.plan.switches, self.deadline)
        )
        self._on_stage("optics")
        self._make_ocses()
        self._on_stage("switches")
        switches.result(self.deadline)
        if not self._is_bpf:  # OVS's add-port removes qdiscs
            links.shape_all(self.plan, self.pids)
        self._on_stage("controllers")
        has_controllers = self.request.with_role(ProcessRole.CONTROLLER)
        if has_controllers or not self.others.is_head or not self.wiring.controlled:
            self._connect_switches()
        if remark := self.switches.finish(self.deadline):
            self.remarks.append(remark)
        self._on_stage("agents")
        self._wait_processes()
        links.verify_all(self.plan, self.pids)

    def _make_management_network(self) -> None:
        """Connect the fabric's namespace to the outer one, in which `up` was called."""
        if self.others.is_head:
            attach = partial(management_uplink.attach, self.request.outer, os.getpid())
            namespaces.run_in(self._outer, attach)
        bridges = self.plan.bridge_address, self.plan.further_bridges
        management_uplink.make_bridges(*bridges, has_uplink=self.others.is_head)

    def _kill_rest(self) -> None:
        """Kill the fabric's remaining processes, including orphans."""
        kill_marked(self.run_dir.name)
        with suppress(FabricError):
            reap_orphans(Deadline.after(_GRACE_S))

    def _start_processes(self, *nodes: str) -> None:
        """Start the processes of these nodes."""
        self.processes.start_all(
            (spec, self.namespaces(spec)) for spec in self.own_specs if spec.node in nodes
        )

    def namespaces(self, spec: ProcessSpec) -> str | int:
        """Return the namespaces of a process, as `ChildProcesses` takes them."""
        return self._outer if spec.node == OUTER else self.pids[spec.node]

    @property
    def own_specs(self) -> list[ProcessSpec]:
        """Specifications of the processes that the fabric process starts itself."""
        return [spec for spec in self.request.processes if spec.role not in self.request.external]

    @property
    def _is_bpf(self) -> bool:
        """True if the switches are in eBPF."""
        return self.wiring.switch == DatapathKind.BPF

    @staticmethod
    def _wait_containers(containers: BackgroundTask[None]) -> None:
        """Wait until no container is being started any more, also if one failed to start."""
        with suppress(FabricError):
            containers.result(Deadline.after(_CONTAINERS_S))

    def _make_nodes(self, containers: BackgroundTask[None]) -> None:
        """Make servers, OCS nodes and unshaped links; start the processes of the nodes."""
        hosts = self.run_dir.hosts_file
        hosts.write_text(hosts_text(self.wiring.fabric, self.wiring.management))
        emulated = [node for node in self.plan.nodes if node not in self.wiring.containers]
        holders = self._undo.enter_context(NamespaceHolders(emulated, self.run_dir.name, hosts))
        namespaces.disable_ipv6()
        self.switches = self._start_switches()
        self.processes.start_prefork_servers(self.own_specs)
        self.pids = holders.pids(self.deadline)
        containers.result(self.deadline)
        guests = self._join_containers()
        self._undo.enter_context(self.links.made())
        self._undo.callback(links.unshape_fabric, self.plan)
        places = self.pids, guests, self._outer
        links.make_links(self.plan, self.whole_plan, *places, shaped=self._is_bpf)
        # Interfaces that lead to real hosts return before the nodes end.
        self._undo.callback(namespaces.run_in, self._outer, partial(return_devices, self.run_dir))
        plug_hosts(self.wiring.hosts, self.pids, self._outer, self.wiring.fabric, self.run_dir)
        self._start_processes(*self.plan.nodes)
        (self.run_dir.path / NODES).write_text(json.dumps(self.pids))

    def _join_containers(self) -> dict[str, str]:
        """Hold the namespaces of containers; return the alias of interfaces in existing ones."""
        joined = self.containers.joined
        if not joined:
            return {}
        networks = {server: container.network for server, container in joined.items()}
        hosts = self.run_dir.hosts_file
        holders = NamespaceHolders(list(joined), self.run_dir.name, hosts, networks)
        self.pids |= self._undo.enter_context(holders).pids(self.deadline)
        self.plan = self.plan.with_interfaces(self.containers.interfaces)
        alias = management_uplink.interface_alias(self.run_dir.name)
        return dict.fromkeys(self.containers.guests, alias)

    def _start_switches(self) -> ElectricalSwitches:
        """Start the processes that serve the switches."""
        folder, tls = self.run_dir.switches, self.wiring.control_tls
        folder.mkdir(exist_ok=True)
        if self._is_bpf:
            program = self.processes.start("switches", (*PRIORITY, *ARGV), piped=True)
            return SwitchProcess(program.popen, folder, self.run_dir.read_token(), tls)
        switches = OvsSwitches(folder, DatapathKind(self.wiring.switch), tls)
        switches.start(self.processes, self.deadline)
        return switches

    def _make_ocses(self) -> None:
        if not self.plan.ocses:
            return
        if reason := crossbar_refusal():
            raise FabricError(f"OCS: {reason}; light needs a kernel with CONFIG_NET_CLS_BPF")
        for ocs in self.plan.ocses:
            hardware = _made_ocs(ocs, self.pids[ocs.name], self.run_dir, self.request.dialects)
            self.ocses[ocs.name] = self._undo.enter_context(hardware)

    def _wait_processes(self) -> None:
        """Wait until OCS devices serve and agents listen."""
        self.processes.wait_forked(self.deadline)
        agents = self.request.with_role(ProcessRole.AGENT)
        for agent in agents:
            running = self.processes.running.get(agent.name)
            if agent.node in self.containers.joined and running is not None:
                self.remarks += self.containers.share_limits(agent.node, running.pid)
        for agent in agents:
            path = self.run_dir.agent_socket(agent.name.removeprefix("agent-"))
            self._await(path.is_socket, agent.name, self.deadline)
        if self.request.with_role(ProcessRole.OCS):
            deadline = self._deadline_of(ProcessRole.OCS)
            for ocs in self.plan.ocses:
                is_served = partial(getattr, self.ocses[ocs.name], "is_served")
                if ocs.is_emulated:
                    self._await(is_served, f"the process of {ocs.name}", deadline)
        if self.others.exist:
            path = self.run_dir.machines_socket
            self._await(path.is_socket, "a part on another machine", self.deadline)
        self.processes.check_alive()
        if faults := self.containers.faults():
            raise FabricError("\n".join(faults))

    def _await(self, is_ready: Callable[[], bool], name: str, deadline: Deadline) -> None:
        """Wait until a process is ready, if it isn't yet; raise FabricError if any process ends."""
        if not is_ready():  # checking all processes for each takes long
            deadline.wait_for(lambda: self.processes.check_alive() and is_ready(), name)

    def _deadline_of(self, role: ProcessRole) -> Deadline:
        """Return when the processes of a role have to serve; earlier if others start them."""
        if role in self.request.external:
            return min(self.deadline, Deadline.after(_EXTERNAL_S), key=attrgetter("at_s"))
        return self.deadline

    def _connect_switches(self) -> None:
        """Connect each switch to its controller as soon as the controller listens.

        After a refused connection OVS would wait 1 s. The kernel's list of sockets is read because
        it shows connections a second or more before OVS's database does. Controllers of others may
        come later.
        """
        wiring = self.wiring
        controllers = {s.bridge: wiring.switch_controller(s.name) for s in self.plan.switches}
        endpoints = set(map(wiring.management.openflow_endpoint, wiring.controlled))
        counts = Counter(place for place in controllers.values() if place in endpoints)
        names = ", ".join(f"{address}:{port}" for address, port in sorted(counts))
        deadline = self._deadline_of(ProcessRole.CONTROLLER)
        if self.others.is_head:  # switches on other machines retry until controllers listen
            listen = partial(namespaces.run_in, self._outer, namespaces.listening_addresses)
            self._await(lambda: counts.keys() <= listen(), f"a controller at {names}", deadline)
        self.switches.connect(controllers, self.deadline)
        connection = f"the switches' connection to {names}"
        self._await(lambda: counts <= namespaces.connection_counts(), connection, deadline)

    def close(self) -> None:
        """Remove everything."""
        self._undo.close()


@contextmanager
def _made_ocs(
    ocs: OcsPlan, pid: int, run_dir: RunDirectory, dialects: Mapping[str, tuple[str, int]]
) -> Iterator[HandoffServer]:
    """Attach a switch's crossbar to the fibres' ends; yield the server that hands it over.

    The end of the server ends the switch's process; circuits end with the node.

    Args:
        ocs: the switch.
        pid: a process in the switch's namespace.
        run_dir: directory for the socket of the handoff server.
        dialects: reference and TCP port of each dialect, by name.

    Raises:
        FabricError: if the crossbar can't be attached.
    """
    interfaces, netns = dict(ocs.plugged), namespaces.path_of(pid)
    with ExitStack() as undo:
        ports = Ports(ocs.spec.ports)
        crossbar = undo.enter_context(closing(BpfCrossbar.create(ports)))
        crossbar.attach(interfaces, netns)
        listeners = {
            name: undo.enter_context(listen_in_namespace(netns, ocs.address, port))
            for name, (_, port) in dialects.items()
            if ocs.is_emulated
        }
        facts = {
            "ports": ocs.spec.ports,
            **_device_spec(ocs, run_dir.name).as_json(),
            "listening": {name: dialects[name][0] for name in listeners},
        }
        fds = [crossbar.fd, *(listener.fileno() for listener in listeners.values())]
        carrier = partial(Carrier, interfaces, netns) if ocs.spec.link_down else None
        server = HandoffServer(run_dir.ocs_socket(ocs.region), facts, fds, carrier)
        yield undo.enter_context(closing(server))


def _device_spec(ocs: OcsPlan, fabric: str) -> DeviceSpec:
    """Return the specification of a switch's device, with the settling time of the plan."""
    spec = ocs.spec
    settle = replace(spec.profile.settle, fixed_ns=spec.settle_ns)
    profile = replace(spec.profile, settle=settle)
    return DeviceSpec(
        profile, f"{fabric}-{ocs.name}", spec.link_up, spec.link_down, ocs.address, ocs.prefix
    )
