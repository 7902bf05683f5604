"""Processes of a running fabric: controllers, OCS devices, agents and gateways of real hosts."""

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from moefabric.agents.engine.host_link import TUNNEL
from moefabric.agents.fleet.channel import Channel, connect_local
from moefabric.core.paths import path_names
from moefabric.core.server_host import ServerHost
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import plugged_hosts
from moefabric.emulator.fabric.links import tcp_sysctls
from moefabric.emulator.fabric.other_machines import HEAD_PROCESS
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.emulator.fabric.tunnels import TUNNEL_HEADERS
from moefabric.emulator.linux.processes import (
    OUTER,
    ProcessRole,
    ProcessSpec,
    last_line,
    prefork_argv,
)
from moefabric.runtime.cpu_monitor import usable_cores
from moefabric.runtime.run_directory import FabricWiring, RunDirectory, shared_name

RESERVE: Final = 64
"""Descriptors of an agent besides its data connections: channels, ranks, files."""
_REASON_S: Final = 4.0
"""Seconds in which a gateway prints why it ended."""


def up_timeout_s(fabric: Fabric) -> float:
    """Return the time in which the processes of a fabric must be ready, also on a busy machine."""
    return 240.0 + 0.1 * len(fabric.servers)


def fabric_processes(wiring: FabricWiring, run_dir: RunDirectory) -> list[ProcessSpec]:
    """Return the processes of a fabric.

    One process forks the controllers of regions and of the EPS. Each region has an OCS device,
    unless its OCS is a real one; in large fabrics, those of several regions share a process. Each
    server has an agent. If several machines carry the fabric, one process holds the other parts.
    """
    fabric = wiring.fabric
    options = "--run-dir", str(run_dir.path)
    controllers = (sys.executable, "-m", "moefabric.controller", *options)
    device = prefork_argv("moefabric.emulator.ocs.__main__")
    passwords = {name: os.environ[name] for name in fabric.password_variables & os.environ.keys()}
    processes = []
    if wiring.controlled:
        spec = ProcessSpec("controllers", OUTER, controllers, passwords, ProcessRole.CONTROLLER)
        processes.append(spec)
    for group in wiring.region_groups:
        emulated = [(r.ocs, r) for r in group if r.ocs and r.ocs.control.address is None]
        ocses = {ocs.name: run_dir.ocs_socket(region) for ocs, region in emulated}
        if ocses:
            name, node = shared_name([*ocses]), next(iter(ocses))
            argv = ("--socket", *map(str, ocses.values()), "--deadline", str(up_timeout_s(fabric)))
            processes.append(ProcessSpec(name, node, argv, role=ProcessRole.OCS, prefork=device))
    if wiring.placement is not None and wiring.placement.others:
        head = (sys.executable, "-m", "moefabric.testbed.cluster.head", *options)
        processes.append(ProcessSpec(HEAD_PROCESS, OUTER, head))
    processes += [_gateway(wiring, run_dir, server) for server in wiring.hosts]
    return processes + _agents(wiring, run_dir)


def agent_hosts(wiring: FabricWiring) -> dict[str, str]:
    """Return the process of each agent that shares one with others, by server.

    There is one for each usable core, and more if their descriptors demand it. Neighbours of a
    region are in different ones, so that a collective of one region uses all cores. Agents of
    containers and real hosts have processes of their own.
    """
    apart = wiring.containers.keys() | wiring.hosts.keys()
    servers = [server for server in wiring.fabric.servers if server not in apart]
    if not wiring.shared_agents or not servers:
        return {}
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = 1 if limit == resource.RLIM_INFINITY else -(-_descriptors(wiring.fabric) // limit)
    count = max(usable_cores(), least)
    return {server: f"agents-{number % count}" for number, server in enumerate(servers)}


def _descriptors(fabric: Fabric) -> int:
    """Return the descriptors of all agents, with as much room for connections between regions."""
    total = 0
    for group in fabric.ep_groups.values():
        pair = group[0], group[-1]
        ways = len(fabric.optical_nics(group[0])) + len(path_names(fabric, *pair))
        total += len(group) * (RESERVE + 2 * (len(group) - 1) * ways)
    return 2 * total


def _agents(wiring: FabricWiring, run_dir: RunDirectory) -> list[ProcessSpec]:
    """Return the agents of all servers but real hosts."""
    alone = prefork_argv("moefabric.agents.engine.main", bare=True)
    shared = prefork_argv("moefabric.agents.engine.host", bare=True)
    hosts, specs = agent_hosts(wiring), []
    for server in [server for server in wiring.fabric.servers if server not in wiring.hosts]:
        control, ranks = run_dir.agent_socket(server), wiring.rank_address(server, run_dir)
        argv = ("--name", server, "--control", str(control), "--ranks", ranks)
        host, role = hosts.get(server, ""), ProcessRole.AGENT
        prefork = shared if host else alone
        specs.append(ProcessSpec(f"agent-{server}", server, argv, {}, role, prefork, host))
    return specs


def with_shells(fabric: str, hosts: Mapping[str, ServerHost]) -> dict[str, ServerHost]:
    """Return the real hosts of a fabric with the argv that runs commands on them."""
    shells = {}
    for server, host in hosts.items():
        facts = RunDirectory.of_fabric(fabric).agent_socket(server).with_suffix(".facts")
        words = ["--login", host.login.to_json(), "--facts", str(facts)]
        interface = host.interface or (TUNNEL if host.plug.vxlan else "")
        words += ["--interface", interface] if interface else []
        shell = (sys.executable, "-m", "moefabric.agents.remote.command", *words)
        shells[server] = replace(host, shell=shell)
    return shells


def connect_agent(wiring: FabricWiring, run_dir: RunDirectory, server: str) -> Channel:
    """Return the control channel of a server's agent, wherever it runs."""
    end_reason = partial(_gateway_end, run_dir, server) if server in wiring.hosts else None
    return connect_local(server, run_dir.agent_socket(server), end_reason=end_reason)


def _gateway_end(run_dir: RunDirectory, server: str) -> str:
    """Return why a gateway has ended; it prints that just after its connections end."""
    log, deadline = run_dir.log_file(f"agent-{server}"), time.monotonic() + _REASON_S
    while not (log.exists() and log.stat().st_size):
        if time.monotonic() > deadline:
            return "its control channel closed"
        time.sleep(0.02)  # nothing announces a line of a log
    return last_line(log)


def _gateway(wiring: FabricWiring, run_dir: RunDirectory, server: str) -> ProcessSpec:
    """Return the process that starts the agent of a real host and answers for it."""
    host, control = wiring.hosts[server], run_dir.agent_socket(server)
    argv = [sys.executable, "-m", "moefabric.agents.remote.gateway", "--server", server]
    argv += ["--control", str(control), "--login", host.login.to_json()]
    if host.interface or host.plug.vxlan:
        argv += ["--link", json.dumps(_link_facts(wiring, server, host))]
    return ProcessSpec(f"agent-{server}", OUTER, tuple(argv), role=ProcessRole.AGENT)


def _link_facts(wiring: FabricWiring, server: str, host: ServerHost) -> dict[str, Any]:
    """Return the settings of a real host's interface (`moefabric.agents.engine.host_link`)."""
    fabric, management = wiring.fabric, wiring.management
    plan = plan_fabric(fabric, management)
    [link] = [link for link in plan.links if link.name == f"{server}/host"]
    vxlan = host.plug.vxlan
    tunnel = {"host": vxlan.remote, "id": vxlan.id, "port": vxlan.port} if vxlan else None
    return {
        "interface": host.interface,
        "tunnel": tunnel,
        "mac": link.a.mac,
        "mtu": fabric.mtu,
        "addresses": list(fabric.addressing.addresses(server)),
        "networks": [str(fabric.addressing.prefix(region.name)) for region in fabric.regions],
        "neighbours": link.a.neighbours,
        "management": {
            "near": plugged_hosts.NEAR_ADDRESS,
            "near_mac": plugged_hosts.NEAR_MAC,
            "far": plugged_hosts.FAR_ADDRESS,
            "id": plugged_hosts.MANAGEMENT_ID,
            "port": plugged_hosts.MANAGEMENT_PORT,
            "mtu": fabric.mtu - TUNNEL_HEADERS,
            "address": management.interface_address(management.server_address(fabric, server)),
        },
        "sysctls": tcp_sysctls(plan),
    }
