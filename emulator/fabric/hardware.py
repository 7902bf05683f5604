"""All hardware of a fabric: made in order in a new network namespace, removed in reverse."""

import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final

from moefabric.config.failure_log import append_failure_event
from moefabric.config.run_directory import RunDirectory
from moefabric.core.errors import FabricError
from moefabric.core.failures import FailureKind
from moefabric.emulator.crossbar.selection import choose_crossbar
from moefabric.emulator.fabric import links, management_uplink, run_directories
from moefabric.emulator.fabric.bpf_switches import BpfSwitches
from moefabric.emulator.fabric.daemon_protocol import NODES, UpRequest
from moefabric.emulator.fabric.datapath import ElectricalSwitches, datapath_named
from moefabric.emulator.fabric.hardware_description import counter_facts, describe_plan
from moefabric.emulator.fabric.hardware_failures import HardwareFailures, set_links
from moefabric.emulator.fabric.host_names import hosts_text
from moefabric.emulator.fabric.optics import OcsHardware
from moefabric.emulator.fabric.other_machines import OtherParts
from moefabric.emulator.fabric.ovs import OvsSwitches
from moefabric.emulator.fabric.placed_plan import plans_of
from moefabric.emulator.fabric.plan import FABRIC, HOST_INTERFACE, MANAGEMENT_INTERFACE
from moefabric.emulator.fabric.plugged_hosts import plug_hosts, return_devices
from moefabric.emulator.fabric.programmed_links import ProgrammedLinks
from moefabric.emulator.fabric.queues import QueueCounts, read_queues
from moefabric.emulator.fabric.server_containers import ServerContainers
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.marked_processes import kill_marked
from moefabric.emulator.linux.namespace_holders import NamespaceHolders
from moefabric.emulator.linux.process_ends import reap_orphans
from moefabric.emulator.linux.processes import (
    OUTER,
    ChildProcess,
    ChildProcesses,
    ProcessRole,
    ProcessSpec,
    adopt_orphans,
)
from moefabric.emulator.linux.waiting import BackgroundTask, Deadline
from moefabric.emulator.ocs.fd_handoff import send_handoff

_CONTAINERS_S: Final = 60.0
_GRACE_S: Final = 0.3
"""Time between SIGTERM and SIGKILL."""
_RESTART_S: Final = 10.0
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
        whole, self.plan = plans_of(self.wiring, request.machine)
        self.others = OtherParts(run_dir, self.wiring.placement, request.machine)
        self.deadline = Deadline.after(request.timeout_s)
        self.processes = ChildProcesses(run_dir)
        self.links = ProgrammedLinks(self.plan, self.processes)
        self.ocses: dict[str, OcsHardware] = {}
        self.pids: dict[str, int] = {}
        """Pid, by node, of a process in the node's namespaces."""
        self.crossbar = self.wiring.crossbar
        self.failures = HardwareFailures(whole, self._signal_agent, set_links=self.set_links)
        self._suspended = set[str]()
        self.remarks: list[str] = []
        """What this machine lacks."""
        self._outer_fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._outer = f"/proc/{os.getpid()}/fd/{self._outer_fd}"
        self._undo = ExitStack()
        self._undo.callback(os.close, self._outer_fd)
        self._undo.callback(run_directories.abandon, run_dir)
        self._undo.callback(self._remove_uplink)
        # Callbacks run in reverse: processes end before another fabric can get their addresses.
        self._undo.callback(self._kill_rest)
        self.containers = ServerContainers(run_dir, self.wiring)
        self._undo.callback(self.containers.close)

    def enter_namespace(self) -> None:
        """Enter a new network namespace and adopt orphans.

        Call it before any thread starts, because a thread inherits its namespace.
        """
        namespaces.enter_new()
        adopt_orphans()

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
        self._undo.callback(self.failures.continue_agents)
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
        # OVS's add-port removes qdiscs, so shaping follows it. Controllers may add rules meanwhile.
        shaping = BackgroundTask("shaping", partial(links.shape_all, self.plan, self.pids))
        self._on_stage("controllers")
        if self.request.with_role(ProcessRole.CONTROLLER) or not self.others.is_head:
            self._connect_switches()
        shaping.result(self.deadline)
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
        management_uplink.make_bridges(self.plan.bridge_address, has_uplink=self.others.is_head)

    def _remove_uplink(self) -> None:
        name = self.run_dir.name
        namespaces.run_in(
            self._outer, lambda: management_uplink.remove(management_uplink.leftovers(name))
        )

    def _kill_rest(self) -> None:
        """Kill the fabric's remaining processes, including orphans."""
        kill_marked(self.run_dir.name)
        with suppress(FabricError):
            reap_orphans(Deadline.after(_GRACE_S))

    def _start_processes(self, *nodes: str) -> None:
        """Start the processes of these nodes."""
        self.processes.start_all(
            (spec, self._namespaces(spec)) for spec in self._own_specs if spec.node in nodes
        )

    def _namespaces(self, spec: ProcessSpec) -> str | int:
        return self._outer if spec.node == OUTER else self.pids[spec.node]

    @property
    def _own_specs(self) -> list[ProcessSpec]:
        """Specifications of the processes that the fabric process starts itself."""
        return [spec for spec in self.request.processes if spec.name not in self.request.external]

    @staticmethod
    def _wait_containers(containers: BackgroundTask[None]) -> None:
        """Wait until no container is being started any more, also if one failed to start."""
        with suppress(FabricError):
            containers.result(Deadline.after(_CONTAINERS_S))

    def _make_nodes(self, containers: BackgroundTask[None]) -> None:
        """Make servers, OCS nodes and unshaped links; start the processes of the nodes."""
        hosts = self.run_dir.hosts_file
        hosts.write_text(hosts_text(self.wiring.fabric, self.wiring.management))
        own = [node for node in self.plan.nodes if node not in self.wiring.containers]
        holders = self._undo.enter_context(NamespaceHolders(own, self.run_dir.name, hosts))
        self.switches = self._make_switches()
        namespaces.disable_ipv6()
        self.switches.start(self.deadline)
        self.processes.start_prefork_servers(self._own_specs)
        # Importing Mininet takes 0.1 s. All that can run at the same time has been started.
        from moefabric.emulator.fabric import mininet_nodes

        self.pids = holders.pids(self.deadline)
        containers.result(self.deadline)
        guests = self._join_containers()
        self.net = mininet_nodes.make_network(self.plan, self.pids)
        self._undo.callback(mininet_nodes.kill_shells, self.net)
        self._undo.enter_context(self.links.made())
        links.make_links(self.plan, self.pids, guests, self._outer)
        self._plug_hosts()
        mininet_nodes.add_links(self.net)
        self._start_processes(*self.plan.nodes)
        (self.run_dir.path / NODES).write_text(json.dumps(self.pids))

    def _plug_hosts(self) -> None:
        """Plug in the interfaces that lead to real hosts; they return before the nodes end."""
        run_dir, outer = self.run_dir, self._outer
        self._undo.callback(namespaces.run_in, outer, lambda: return_devices(run_dir))
        plug_hosts(self.wiring.hosts, self.pids, outer, self.wiring.fabric, run_dir)

    def _join_containers(self) -> dict[str, str]:
        """Hold the namespaces of containers; return the alias of interfaces in existing ones."""
        joined = self.containers.joined
        if not joined:
            return {}
        networks = {server: container.network for server, container in joined.items()}
        hosts = self.run_dir.hosts_file
        holders = NamespaceHolders(list(joined), self.run_dir.name, hosts, networks)
        self.pids |= self._undo.enter_context(holders).pids(self.deadline)
        for server, container in joined.items():
            names = container.interfaces
            planned = {HOST_INTERFACE: names.host, MANAGEMENT_INTERFACE: names.management}
            changes = {(server, old): new for old, new in planned.items()}
            self.plan = self.plan.with_interfaces(changes)
        alias = management_uplink.interface_alias(self.run_dir.name)
        return dict.fromkeys(self.containers.guests, alias)

    def _share_limits(self) -> None:
        """Give agents the limits of their servers' containers."""
        for agent in self.request.with_role(ProcessRole.AGENT):
            running = self.processes.running.get(agent.name)
            if agent.node in self.containers.joined and running is not None:
                remark = self.containers.share_limits(agent.node, running.pid)
                self.remarks += [remark] if remark else []

    def _make_switches(self) -> ElectricalSwitches:
        datapath, folder = datapath_named(self.wiring.switch), self.run_dir.switches
        folder.mkdir(exist_ok=True)
        if datapath.is_ovs:
            return OvsSwitches(folder, datapath, self.processes, self.wiring.control_tls)
        token, tls = self.run_dir.read_token(), self.wiring.control_tls
        return BpfSwitches(folder, self.processes, token, tls)

    def _make_ocses(self) -> None:
        if not self.plan.ocses:
            return
        self.crossbar, reason = choose_crossbar()
        if reason:
            self.remarks.append(f"{self.crossbar} moves the light, for {reason}")
        for ocs in self.plan.ocses:
            hardware = OcsHardware(ocs, self.crossbar, self.pids[ocs.name], self.run_dir)
            self.ocses[ocs.name] = hardware
            self._undo.callback(hardware.close)

    def _wait_processes(self) -> None:
        """Wait until OCS devices serve and agents listen."""
        self.processes.wait_forked(self.deadline)
        self._share_limits()
        for agent in self.request.with_role(ProcessRole.AGENT):
            path = self.run_dir.agent_socket(agent.name.removeprefix("agent-"))
            self._await(path.is_socket, agent.name)
        if self.request.with_role(ProcessRole.OCS):
            deadline = self._deadline_of(ProcessRole.OCS)
            for name, ocs in self.ocses.items():
                is_served = partial(getattr, ocs.handoff, "is_served")
                self._await(is_served, f"the process of {name}", deadline)
        if self.others.exist:
            self._await(self.run_dir.machines_socket.is_socket, "a part on another machine")
        self.processes.check_alive()
        if faults := self.containers.faults():
            raise FabricError("\n".join(faults))

    def _await(
        self, is_ready: Callable[[], bool], name: str, deadline: Deadline | None = None
    ) -> None:
        """Wait until a process is ready, if it isn't yet; raise FabricError if any process ends."""
        if not is_ready():  # checking all processes for each takes long
            deadline = deadline or self.deadline
            deadline.wait_for(lambda: self.processes.check_alive() and is_ready(), name)

    def _deadline_of(self, role: ProcessRole) -> Deadline:
        """Return when the processes of a role have to serve; earlier if others start them."""
        if any(spec.name in self.request.external for spec in self.request.with_role(role)):
            return min(self.deadline, Deadline.after(_EXTERNAL_S), key=attrgetter("at_s"))
        return self.deadline

    def _connect_switches(self) -> None:
        """Connect each switch to its controller as soon as the controller listens.

        After a refused connection OVS would wait 1 s. The kernel's list of sockets is read because
        it shows connections a second or more before OVS's database does.
        """
        controllers = {switch.bridge: switch.controller for switch in self.plan.switches}
        counts = Counter(controllers.values())
        names = ", ".join(f"{address}:{port}" for address, port in sorted(counts))
        deadline = self._deadline_of(ProcessRole.CONTROLLER)
        if self.others.is_head:  # switches on other machines retry until controllers listen
            deadline.wait_for(
                lambda: self.processes.check_alive() and counts.keys() <= self._outer_listeners(),
                f"a controller at {names}",
            )
        self.switches.connect(controllers, self.deadline)
        deadline.wait_for(
            lambda: self.processes.check_alive() and counts <= namespaces.connection_counts(),
            f"the switches' connection to {names}",
        )

    def _outer_listeners(self) -> set[tuple[str, int]]:
        return namespaces.run_in(self._outer, namespaces.listening_addresses)

    def set_links(self, names: Iterable[str], *, up: bool) -> None:
        """Switch interfaces of the fabric's namespaces on or off, on all machines.

        Raises:
            FabricError: names the machine that didn't switch an interface off; then none is off.
                An interface of a lost machine isn't there to be switched on.
        """
        local = self.local_links(names)
        if remote := set(names) - local:
            replies = self.others.ask({"do": "set-links", "names": sorted(remote), "up": up})
            parts = replies.parts.values()
            switched = {name for reply in parts for name in reply.get("switched", ())}
            if not up and remote - switched:
                if switched:
                    self.others.ask({"do": "set-links", "names": sorted(switched), "up": True})
                raise FabricError("; ".join(replies.faults))
        set_links(local, up=up)

    def local_links(self, names: Iterable[str]) -> set[str]:
        """Return those of these interfaces that are in the fabric's namespace of this machine."""
        local = {end.name for link in self.plan.links for end in link.ends if end.node == FABRIC}
        return local.intersection(names)

    def _signal_agent(self, server: str, number: signal.Signals) -> None:
        """Send a signal to a server's agent, if a fabric process has started it."""
        if server not in self.plan.servers:
            self.others.ask({"do": "signal", "server": server, "number": int(number)})
        self.signal_agent(server, number)

    def signal_agent(self, server: str, number: signal.Signals) -> None:
        """Send a signal to a server's agent, if it runs on this machine."""
        stops = number is signal.SIGSTOP
        (self._suspended.add if stops else self._suspended.discard)(server)
        for agent in self.request.with_role(ProcessRole.AGENT):
            if agent.node == server and agent.name in self.processes.running:
                self.processes.running[agent.name].signal(number)

    def ocs_processes(self) -> list[ChildProcess]:
        """Return the processes of OCSes that the fabric process has started."""
        own = {spec.name for spec in self._own_specs if spec.role is ProcessRole.OCS}
        return [process for name, process in self.processes.running.items() if name in own]

    def restart(self, name: str) -> ChildProcess:
        """Start a process that has ended again; raise FabricError if that fails."""
        spec = next(spec for spec in self._own_specs if spec.name == name)
        deadline = Deadline.after(_RESTART_S)
        return self.processes.restart(spec, self._namespaces(spec), deadline)

    def lose_container(self, server: str) -> None:
        """Lose a server whose container has ended: its NICs go down, and its agent ends.

        The agent ends at once because the engine waits until nothing has the container's limits.
        """
        self._signal_agent(server, signal.SIGKILL)
        at_ns = self.failures.inject(FailureKind.SERVER, [server])
        why = "its container has ended"
        append_failure_event(self.run_dir, "inject", FailureKind.SERVER, [server], why, at_ns)

    def faults(self) -> list[str]:
        """Describe what has ended but should run: containers, processes, OCSes' sockets, parts."""
        unanswered = [name for name, ocs in self.ocses.items() if not ocs.handoff.is_alive]
        return [
            *self.containers.faults(),
            *(f"{name}: nothing answers at its sockets" for name in unanswered),
            *self.processes.ends(),
            *self.others.faults(),
        ]

    def describe(self) -> dict[str, Any]:
        """Return the hardware for `inspect --json`."""
        shown = json.loads(run(["ip", "-j", "link", "show"]))
        carrier = {link["ifname"]: "LOWER_UP" in link["flags"] for link in shown}
        described = describe_plan(self.wiring, self.plan, carrier)
        for server in described["servers"]:
            server.update(self.containers.describe(server["name"]))
            if host := self.wiring.hosts.get(server["name"]):
                server["host"] = host.login.host
        own = described | {
            "processes": [{"name": one.name, "pid": one.pid} for one in self.processes.alive()],
            "crossbar": self.crossbar,
            "remarks": self.remarks,
            "faults": self.faults(),
        }
        return self.others.with_descriptions(own, self.wiring.fabric.servers)

    def hand_counters(self, client: socket.socket) -> None:
        """Hand a client what it needs to read the counters of NICs and OCS ports."""
        memories = {name: ocs.memory_fd for name, ocs in self.ocses.items()}
        counted = {name: fd for name, fd in memories.items() if fd is not None}
        facts = counter_facts(
            self.plan, {name: index for index, name in socket.if_nameindex()}, list(counted)
        )
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            send_handoff(client, facts, [kernel.fileno(), *counted.values()])

    def deviations(self) -> list[str]:
        """Return links without their rates, and processes that ended or that a signal stopped.

        Agents that an injected failure stops are no deviation.
        """
        stopped = self.processes.stops({f"agent-{server}" for server in self._suspended})
        parts = self.others.ask({"do": "verify"}).faults
        faults = [*dict.fromkeys([*self.faults(), *parts]), *stopped]
        try:
            links.verify_all(self.plan, self.pids)
        except FabricError as fault:
            return [*faults, *str(fault).split("; ")]
        return faults

    def queues(self) -> QueueCounts:
        """Return the counters of all queues by port."""
        return read_queues(self.plan, self.pids) | self.links.queues() | self.others.queues()

    def link_lateness(self) -> dict[str, Any]:
        """Return how late programmed links have been since the last call; empty without any."""
        return self.others.with_lateness(self.links.lateness())

    def close(self) -> None:
        """Remove everything."""
        self._undo.close()
