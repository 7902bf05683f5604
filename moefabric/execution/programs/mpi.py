"""OpenMPI on a running fabric: its hostfile, the agent that reaches servers, and its settings.

`mpirun` has the network of the first emulated server and this machine's files. It starts its
daemons on the servers through an agent, in the place of ssh. Daemons talk over the management
network, which leads to servers only, and ranks over the fabric. The settings are environment
variables, so that those of mpirun's command line still come first.
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from moefabric.core.errors import UnsupportedError
from moefabric.emulator.fabric import node_commands
from moefabric.emulator.linux.marked_processes import ProcessGuard
from moefabric.execution.programs.rank_jobs import RENDEZVOUS_INTERFACE
from moefabric.execution.programs.rank_processes import JOB_VARIABLE
from moefabric.runtime.environment import passed_environment
from moefabric.runtime.run_directory import FabricWiring

_RANKS: Final = {
    "btl": "self,vader,tcp",
    "btl_tcp_if_include": RENDEZVOUS_INTERFACE,
    # ob1 uses the transports above; without it, UCX and PSM would look for their own hardware.
    "pml": "ob1",
    # All peers at once: each has circuits of its own. OpenMPI would exchange with one at a time.
    "coll_tuned_use_dynamic_rules": "1",
    "coll_tuned_alltoall_algorithm": "1",
    "coll_tuned_alltoallv_algorithm": "1",
    # Ranks of all servers share the machine's cores.
    "mpi_yield_when_idle": "1",
    "hwloc_base_binding_policy": "none",
}
"""Parameters of ranks in OpenMPI 4 and 5."""
_ROOT: Final = ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM")


def hostfile(servers: Sequence[str], slots: int = 1) -> str:
    """Return a hostfile of OpenMPI.

    Args:
        servers: Names of the servers.
        slots: Ranks of each server.
    """
    return "".join(f"{server} slots={slots}\n" for server in servers)


@contextmanager
def mpi_launch(
    wiring: FabricWiring, servers: Sequence[str], slots: int
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the argv of `mpirun` with its hostfile, and its environment.

    Further options and the program follow. Afterwards, nothing of them runs, and their files are
    gone.

    Args:
        wiring: The fabric, which is up.
        servers: The servers, in the order of their ranks.
        slots: Ranks of each server.

    Raises:
        UnsupportedError: if OpenMPI isn't installed.
    """
    if shutil.which("mpirun") is None:
        raise UnsupportedError("mpirun is not installed: apt install openmpi-bin")
    mark = f"{os.getpid()}-{uuid4().hex}"
    with (
        tempfile.TemporaryDirectory(prefix="mpi", dir="/tmp") as folder,  # short, for its sockets
        closing(ProcessGuard(JOB_VARIABLE, mark)),
    ):
        agent, hosts = Path(folder, "agent"), Path(folder, "hosts")
        agent.write_text(_agent_script(wiring.fabric.name, servers))
        agent.chmod(0o700)
        hosts.write_text(hostfile(servers, slots))
        settings = mpi_settings(wiring.management.subnet, str(agent), folder)
        command = ["mpirun", "--hostfile", str(hosts)]
        # The node of a real host has no address.
        first = next((server for server in servers if server not in wiring.hosts), servers[0])
        argv = node_commands.network_argv(wiring.fabric.name, first, command)
        yield list(argv), {**settings, **passed_environment(), JOB_VARIABLE: mark}


def mpi_settings(subnet: str, agent: str, folder: str) -> dict[str, str]:
    """Return the variables with which OpenMPI 4 and 5 run on a fabric.

    Args:
        subnet: The management network.
        agent: The program that runs a command on a server.
        folder: For the files of sessions.
    """
    ranks = {f"OMPI_MCA_{name}": value for name, value in _RANKS.items()}
    daemons_of_4 = {
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_oob_tcp_if_include": subnet,
        # The agent knows the servers' names; the machine's name server isn't reachable there.
        "OMPI_MCA_if_base_do_not_resolve": "1",
        "OMPI_MCA_orte_tmpdir_base": folder,
    }
    daemons_of_5 = {
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_prte_if_include": subnet,
        "PRTE_MCA_prte_do_not_resolve": "1",
        "PRTE_MCA_prte_tmpdir_base": folder,
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    root = {f"{prefix}_{name}": "1" for prefix in ("OMPI", "PRTE") for name in _ROOT}
    return {**ranks, **daemons_of_4, **daemons_of_5, **root}


def _agent_script(fabric: str, servers: Sequence[str]) -> str:
    """Return a shell script that takes a server and a command as ssh does, and runs it there."""
    cases = [
        f"    {shlex.quote(server)}) "
        f'exec {shlex.join(node_commands.exec_argv(fabric, server, ["sh", "-c"]))} "$*" ;;\n'
        for server in servers
    ]
    refusal = '    *) echo "$server: not a server of the job" >&2; exit 255 ;;\n'
    head = '#!/bin/sh\nserver=$1\nshift\ncase "$server" in\n'
    return f"{head}{''.join(cases)}{refusal}esac\n"
