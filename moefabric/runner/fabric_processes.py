"""Processes of a running fabric: controllers, OCS devices and agents."""

import os
import sys
from typing import Final

from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.emulator.fabric.other_machines import HEAD_PROCESS
from moefabric.emulator.linux.processes import OUTER, ProcessRole, ProcessSpec, prefork_argv
from moefabric.runner.host_servers import gateway

UP_TIMEOUT_S: Final = 240.0
"""Time in which the processes of a fabric must be ready; 512 servers on a busy machine take most of
it."""


def fabric_processes(wiring: FabricWiring, run_dir: RunDirectory) -> list[ProcessSpec]:
    """Return the processes of a fabric.

    One process forks a controller for each region and for the EPS. Each region has an OCS device,
    each server an agent. If several machines carry the fabric, one process holds the other parts.
    """
    fabric = wiring.fabric
    controllers = (sys.executable, "-m", "moefabric.controller", "--run-dir", str(run_dir.path))
    device = prefork_argv("moefabric.emulator.ocs.__main__")
    engine = prefork_argv("moefabric.agents.engine.main", bare=True)
    passwords = {name: os.environ[name] for name in fabric.password_variables & os.environ.keys()}
    processes = [
        ProcessSpec("controllers", OUTER, controllers, passwords, role=ProcessRole.CONTROLLER)
    ]
    for region in fabric.regions:
        if region.ocs is not None:
            name, limit = region.ocs.name, str(UP_TIMEOUT_S)
            handoff = ("--socket", str(run_dir.ocs_socket(region)), "--deadline", limit)
            processes.append(ProcessSpec(name, name, handoff, role=ProcessRole.OCS, prefork=device))
    if wiring.placement is not None and wiring.placement.others:
        head = (sys.executable, "-m", "moefabric.cluster.head", "--run-dir", str(run_dir.path))
        processes.append(ProcessSpec(HEAD_PROCESS, OUTER, head))
    processes += [gateway(wiring, run_dir, server) for server in wiring.hosts]
    for server in fabric.servers:
        if server in wiring.hosts:
            continue
        control, ranks = run_dir.agent_socket(server), wiring.rank_address(server, run_dir)
        argv = ("--name", server, "--control", str(control), "--ranks", ranks)
        processes.append(
            ProcessSpec(f"agent-{server}", server, argv, role=ProcessRole.AGENT, prefork=engine)
        )
    return processes
