"""Real hosts that are servers of a fabric: the processes that reach them."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from moefabric.agents.engine.host_link import TUNNEL
from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.core.server_host import ServerHost
from moefabric.emulator.fabric.links import tcp_sysctls
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.emulator.fabric.plugged_hosts import (
    FAR_ADDRESS,
    MANAGEMENT_ID,
    MANAGEMENT_PORT,
    NEAR_ADDRESS,
    NEAR_MAC,
    TUNNEL_HEADERS,
)
from moefabric.emulator.linux.processes import OUTER, ProcessRole, ProcessSpec


def with_shells(fabric: str, hosts: Mapping[str, ServerHost]) -> dict[str, ServerHost]:
    """Return the real hosts of a fabric with the argv that runs commands on them."""
    return {server: replace(h, shell=_shell(fabric, server, h)) for server, h in hosts.items()}


def _shell(fabric: str, server: str, host: ServerHost) -> tuple[str, ...]:
    facts = RunDirectory.of_fabric(fabric).agent_socket(server).with_suffix(".facts")
    words = ["--login", json.dumps(asdict(host.login)), "--facts", str(facts)]
    interface = host.interface or (TUNNEL if host.plug.kind == "vxlan" else "")
    words += ["--interface", interface] if interface else []
    return (sys.executable, "-m", "moefabric.agents.remote.command", *words)


def gateway(wiring: FabricWiring, run_dir: RunDirectory, server: str) -> ProcessSpec:
    """Return the process that starts the agent of a real host and answers for it."""
    host, control = wiring.hosts[server], run_dir.agent_socket(server)
    argv = [sys.executable, "-m", "moefabric.agents.remote.gateway", "--server", server]
    argv += ["--control", str(control), "--login", json.dumps(asdict(host.login))]
    if host.interface or host.plug.kind == "vxlan":
        argv += ["--link", json.dumps(_link_facts(wiring, server, host))]
    return ProcessSpec(f"agent-{server}", OUTER, tuple(argv), role=ProcessRole.AGENT)


def _link_facts(wiring: FabricWiring, server: str, host: ServerHost) -> dict[str, Any]:
    """Return what a real host's interface gets (`moefabric.agents.engine.host_link`)."""
    fabric, management = wiring.fabric, wiring.management
    plan = plan_fabric(fabric, management)
    [link] = [link for link in plan.links if link.name == f"{server}/host"]
    plug = host.plug
    tunnel = {"host": plug.remote, "id": plug.vni, "port": plug.port} if plug.remote else None
    return {
        "interface": host.interface,
        "tunnel": tunnel,
        "mac": link.a.mac,
        "mtu": fabric.mtu,
        "addresses": list(fabric.addresses(server)),
        "networks": [str(fabric.prefix(region.name)) for region in fabric.regions],
        "neighbours": link.a.neighbours,
        "management": {
            "near": NEAR_ADDRESS,
            "near_mac": NEAR_MAC,
            "far": FAR_ADDRESS,
            "id": MANAGEMENT_ID,
            "port": MANAGEMENT_PORT,
            "mtu": fabric.mtu - TUNNEL_HEADERS,
            "address": f"{management.server_address(fabric, server)}/24",
        },
        "sysctls": tcp_sysctls(plan),
    }
