"""Hardware of a running fabric: failures, restarts of processes, state and counters."""

import json
import os
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moefabric.core.errors import FabricError
from moefabric.core.failure_kinds import FailureKind
from moefabric.emulator.crossbar import bpf_crossbar
from moefabric.emulator.fabric import links
from moefabric.emulator.fabric.hardware_failures import HardwareFailures, set_links
from moefabric.emulator.fabric.other_machines import merged_lateness
from moefabric.emulator.fabric.plan import FABRIC, FabricPlan, Link
from moefabric.emulator.linux import netlink
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.processes import ChildProcess, ProcessRole
from moefabric.emulator.ocs.fd_handoff import send_handoff
from moefabric.emulator.ocs.scpi.dialect import SCPI
from moefabric.runtime.failure_log import append_failure_event
from moefabric.runtime.processes import end_text, thread_group
from moefabric.runtime.run_directory import FabricWiring
from moefabric.runtime.waiting import Deadline

if TYPE_CHECKING:
    from moefabric.emulator.fabric.hardware import Hardware

HOLDER: Final = "namespaces"
"""Name of the processes that hold the nodes' namespaces, once they have ended."""
_RESTART_S: Final = 10.0
_RESTARTED: Final = {ProcessRole.OCS, ProcessRole.CONTROLLER}
"""Roles of the processes that start again when they end: light and switches go on meanwhile."""


class RunningHardware:
    """Hardware of one fabric after it has been made.

    Attributes:
        failures: the injected failures.
    """

    def __init__(self, hardware: "Hardware") -> None:
        """Take hardware that has been made."""
        self._made, self._plan = hardware, hardware.plan
        self._processes, self._others = hardware.processes, hardware.others
        self._roles = {spec.name: spec.role for spec in hardware.own_specs}
        self._suspended, self._lost_agents = set[str](), set[str]()
        self._ended_holders = list[int]()
        self.failures = HardwareFailures(hardware.whole_plan, self._signal_agent, self.set_links)

    def set_links(self, names: Iterable[str], *, up: bool) -> None:
        """Switch interfaces of the fabric's namespaces on or off, on all machines.

        Raises:
            FabricError: names the machine that didn't switch an interface off; then none is off.
                An interface of a lost machine isn't there to be switched on.
        """
        if remote := set(names) - self._local_links(names):
            request = {"do": "set-links", "names": sorted(remote)}
            replies = self._others.ask(request | {"up": up})
            parts = replies.parts.values()
            switched = {name for reply in parts for name in reply.get("switched", ())}
            if not up and remote - switched:
                if switched:
                    self._others.ask(request | {"names": sorted(switched), "up": True})
                raise FabricError("; ".join(replies.faults))
        self.set_local_links(names, up=up)

    def set_local_links(self, names: Iterable[str], *, up: bool) -> dict[str, Any]:
        """Switch those of these interfaces that are on this machine; return them as `switched`."""
        local = self._local_links(names)
        set_links(local, up=up)
        return {"switched": sorted(local)}

    def _local_links(self, names: Iterable[str]) -> set[str]:
        """Return those of these interfaces that are in the fabric's namespace of this machine."""
        ends = (end for link in self._plan.links for end in link.ends)
        return {end.name for end in ends if end.node == FABRIC}.intersection(names)

    def _signal_agent(self, server: str, number: signal.Signals) -> None:
        """Send a signal to a server's agent, if a fabric process has started it."""
        if server not in self._plan.servers:
            self._others.ask({"do": "signal", "server": server, "number": int(number)})
        self.signal_agent(server, number)

    def signal_agent(self, server: str, number: int) -> None:
        """Send a signal to a server's agent, if it runs on this machine."""
        stops = number == signal.SIGSTOP
        (self._suspended.add if stops else self._suspended.discard)(server)
        for agent in self._made.request.with_role(ProcessRole.AGENT):
            if agent.node == server:
                self._processes.send_signal(agent.name, signal.Signals(number))

    @property
    def processes(self) -> list[ChildProcess]:
        """The processes that the fabric process has started."""
        return list(self._processes.running.values())

    def restarts(self, name: str) -> bool:
        """Return whether a process starts again when it ends."""
        return self._roles.get(name) in _RESTARTED

    def note_end(self, process: ChildProcess) -> None:
        """Append the end of a process to the failure log; an OCS does without its process."""
        is_ocs = self._roles.get(process.name) is ProcessRole.OCS
        if not is_ocs and process.name not in self._lost_agents:
            why, what = f"ended ({end_text(process.exit_status or 0)})", [process.name]
            append_failure_event(self._made.run_dir, "lost", FailureKind.PROCESS, what, why)

    @property
    def holders(self) -> set[int]:
        """The processes that hold the namespaces of nodes."""
        return {thread_group(thread) for thread in self._made.pids.values()}

    def note_end_of_holder(self, pid: int) -> None:
        """Append the end of a process that held namespaces to the failure log."""
        _, status = os.waitpid(pid, 0)
        self._ended_holders.append(os.waitstatus_to_exitcode(status))
        why = f"ended ({end_text(self._ended_holders[-1])})"
        append_failure_event(self._made.run_dir, "lost", FailureKind.PROCESS, [HOLDER], why)

    def restart(self, name: str) -> ChildProcess:
        """Start a process that has ended again; raise FabricError if that fails."""
        spec = next(spec for spec in self._made.own_specs if spec.name == name)
        deadline = Deadline.after(_RESTART_S)
        return self._processes.restart(spec, self._made.namespaces(spec), deadline)

    def lose_container(self, server: str) -> None:
        """Lose a server whose container has ended: its NICs go down, and its agent ends.

        The agent ends at once because the engine waits until nothing has the container's limits.
        """
        self._lost_agents.add(f"agent-{server}")
        self._signal_agent(server, signal.SIGKILL)
        at_ns = self.failures.inject(FailureKind.SERVER, [server])
        why = "its container has ended"
        append_failure_event(self._made.run_dir, "inject", FailureKind.SERVER, [server], why, at_ns)

    def faults(self) -> list[str]:
        """Describe what has ended: nodes, containers, processes, OCSes' sockets and parts."""
        unanswered = [name for name, ocs in self._made.ocses.items() if not ocs.is_alive]
        return [
            *self._lost_nodes(),
            *self._made.containers.faults(),
            *(f"{name}: nothing answers at its sockets" for name in unanswered),
            *self._processes.ends(),
            *self._others.faults(),
        ]

    def _lost_nodes(self) -> Iterator[str]:
        """Describe the nodes whose namespaces nothing holds any more; one process holds many."""
        held = self._made.pids.items()
        if lost := [node for node, thread in held if not Path(f"/proc/{thread}").exists()]:
            nodes = lost[0] if len(lost) == 1 else f"{lost[0]} to {lost[-1]}"
            yield f"{nodes}: the process that holds their namespaces has ended"

    def describe(self) -> dict[str, Any]:
        """Return the hardware for `inspect --json`."""
        shown = json.loads(run(["ip", "-j", "link", "show"]))
        carrier = {link["ifname"]: "LOWER_UP" in link["flags"] for link in shown}
        wiring = self._made.wiring
        described = describe_plan(wiring, self._plan, carrier)
        for server in described["servers"]:
            server.update(self._made.containers.describe(server["name"]))
            if host := wiring.hosts.get(server["name"]):
                server["host"] = host.login.host
        alive = [
            {"name": process.name, "pid": process.pid} | self._served(process.name)
            for process in self._processes.alive()
        ]
        ended = [
            {"name": process.name, "status": process.exit_status}
            for process in self._processes.ended()
        ]
        ended += [{"name": HOLDER, "status": status} for status in self._ended_holders]
        part = described | {"processes": alive, "ended": ended, "crossbar": bpf_crossbar.KIND}
        part |= {"remarks": self._made.remarks, "faults": self.faults()}
        return self._others.with_descriptions(part, wiring.fabric.servers)

    def _served(self, name: str) -> dict[str, Any]:
        """Return the servers that share a process, for `inspect --json`; nothing for others."""
        hosted = self._processes.hosted.get(name)
        return {"servers": [spec.node for spec in hosted]} if hosted else {}

    def hand_counters(self, client: socket.socket) -> None:
        """Hand a client the descriptors from which it reads the counters of ports."""
        memories = [ocs.fds[0] for ocs in self._made.ocses.values()]
        index_of = {name: index for index, name in socket.if_nameindex()}
        facts = counter_facts(self._plan, index_of)
        with netlink.route_socket() as kernel:
            send_handoff(client, facts, [kernel.fileno(), *memories])

    def deviations(self) -> list[str]:
        """Return links without their rates, and processes that ended or that a signal stopped.

        Agents that an injected failure stops are no deviation.
        """
        stopped = self._processes.stops({f"agent-{server}" for server in self._suspended})
        parts = self._others.ask({"do": "verify"}).faults
        faults = [*dict.fromkeys([*self.faults(), *parts]), *stopped]
        try:
            links.verify_all(self._plan, self._made.pids)
        except FabricError as fault:
            return [*faults, *str(fault).split("; ")]
        return faults

    def queues(self) -> links.QueueCounts:
        """Return the counters of all queues by port."""
        local = links.read_queues(self._plan, self._made.pids) | self._made.links.queues()
        parts = self._others.ask({"do": "queues"}).parts.values()
        return local | {port: counts for part in parts for port, counts in part.items()}

    def link_lateness(self) -> dict[str, Any]:
        """Return how late programmed links have been since the last call; empty without any."""
        parts = self._others.ask({"do": "links"}).parts.values()
        return merged_lateness([self._made.links.lateness(), *parts])


def counter_facts(plan: FabricPlan, index_of: Mapping[str, int]) -> dict[str, Any]:
    """Return where the counters of NICs, OCS ports and uplinks are (module `port_counters`).

    Args:
        index_of: index of each interface of the fabric's own namespace.
    """
    rated = [link for link in plan.links if link.rate_bps is not None and link.a in link.ends]
    return {
        "ports": [link.name for link in rated],
        "interfaces": [index_of[link.a.name] for link in rated],
        "tunnels": [link.name for link in rated if link.tunnel is not None],
        "crossbars": [
            {
                "ports": ocs.spec.ports,
                "inputs": {link.name: link.b.port for link in rated if link.b.node == ocs.name},
            }
            for ocs in plan.ocses
        ],
    }


def describe_plan(
    wiring: FabricWiring, plan: FabricPlan, carrier: Mapping[str, bool]
) -> dict[str, Any]:
    """Return servers, OCSes and switches as JSON values.

    Args:
        wiring: the wiring of the fabric.
        carrier: whether an interface has a carrier, by the interface's name.
    """
    links = {link.name: link for link in plan.links}
    return {
        "fabric": wiring.fabric.name,
        "servers": [_describe_server(wiring, links, carrier, server) for server in plan.servers],
        "ocs": [
            {
                "name": ocs.name,
                "region": ocs.region.name,
                "management": ocs.address,
                "scpi_port": SCPI.port,
                "ports": ocs.spec.ports,
                "circuits": [],
            }
            for ocs in plan.ocses
        ],
        "switches": [
            {
                "name": switch.name,
                "bridge": switch.bridge,
                "datapath_id": switch.datapath_id,
                "datapath": wiring.switch,
            }
            for switch in plan.switches
        ],
        "links": [
            {"name": link.name, **asdict(link.behaviour)}
            for link in plan.programmed
            if link.behaviour is not None
        ],
    }


def _describe_server(
    wiring: FabricWiring, links: Mapping[str, Link], carrier: Mapping[str, bool], server: str
) -> dict[str, Any]:
    """Return a server with its NICs as JSON values, as `describe_plan` has it."""
    fabric = wiring.fabric
    return {
        "name": server,
        "region": fabric.region_of[server].name,
        "addresses": list(fabric.addressing.addresses(server)),
        "nics": [
            {
                "name": str(nic),
                "kind": nic.kind.value,
                "rate_bps": links[str(nic)].rate_bps,
                "carrier": carrier.get(links[str(nic)].a.name, False),
            }
            for nic in fabric.nics(server)
        ],
        "management": wiring.management.server_address(fabric, server),
    }
