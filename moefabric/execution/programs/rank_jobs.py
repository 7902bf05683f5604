"""Ranks of a job, numbered as by torchrun: where they run and meet, and their environment.

A place is a fabric that is up, or real hosts.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.errors import SpecError
from moefabric.core.server_host import HostLogin
from moefabric.emulator.fabric import node_commands
from moefabric.runtime.run_directory import FabricWiring

MASTER_PORT: Final = 29500
"""TCP port of the rendezvous; torchrun's default."""
RENDEZVOUS_INTERFACE: Final = "eth0"
"""Interface of a server through which ranks reach each other."""
Launcher = Callable[[str, Sequence[str]], Sequence[str]]
"""Returns the local argv that runs a command on a server: emulated, a container or a host.

The command must end when the local process gets SIGTERM, and exit with its status.
"""


@dataclass(frozen=True)
class Rank:
    """A process of a job.

    Attributes:
        number: Among all ranks of the job.
        local: Among the ranks of its server.
        server: Where it runs.
    """

    number: int
    local: int
    server: str

    def __str__(self) -> str:
        return f"rank {self.number} on {self.server}"


@dataclass(frozen=True)
class RankPlace:
    """Servers on which ranks run.

    Attributes:
        launcher: Starts ranks there.
        servers: The servers, in the order of their ranks.
        master_address: Address of the first server, where rank 0 offers the rendezvous.
        master_port: TCP port of the rendezvous.
        environment: Variables of the ranks of each server.
    """

    launcher: Launcher
    servers: tuple[str, ...]
    master_address: str
    master_port: int = MASTER_PORT
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def on_fabric(
        cls,
        wiring: FabricWiring,
        servers: Sequence[str],
        *,
        by_agents: bool = False,
        over_management: bool = False,
    ) -> Self:
        """Return servers of a fabric that is up; their ranks meet over the management network.

        Args:
            by_agents: Whether ranks that use the backend `moefabric` reach the agents of their
                servers.
            over_management: Whether gloo talks over the management network instead of the fabric.
        """
        environment: dict[str, dict[str, str]] = {}
        for server in servers:
            names = wiring.interfaces_of(server)
            interface = names.management if over_management else names.host
            environment[server] = {"GLOO_SOCKET_IFNAME": interface}
            if by_agents:
                environment[server]["MOEFABRIC_AGENT"] = wiring.rank_address(server)
        first, name = servers[0], wiring.fabric.name
        return cls(
            partial(node_commands.exec_argv, name),
            tuple(servers),
            wiring.management.server_address(wiring.fabric, first),
            node_commands.free_port(name, first),
            environment,
        )

    @classmethod
    def on_hosts(
        cls, logins: Mapping[str, HostLogin], addresses: Mapping[str, str], fleet: Fleet
    ) -> Self:
        """Return real hosts, whose ranks meet and talk over the hosts' own network.

        Commands start in the folder of the caller's name there, if there is one.

        Args:
            logins: How to log in to each host, by server.
            addresses: Address of each host.
            fleet: Agents of the hosts.
        """
        environment, first = {}, next(iter(logins))
        for server in logins:
            facts = fleet.facts[server]
            named = {address: name for name, address in facts["interfaces"].items()}
            # Without an interface, gloo takes the one that the host's name leads to, often lo.
            interface = named.get(addresses[server], "")
            variables = {"GLOO_SOCKET_IFNAME": interface, "MOEFABRIC_AGENT": facts["ranks"]}
            environment[server] = variables

        def launcher(server: str, command: Sequence[str]) -> Sequence[str]:
            module = [sys.executable, "-m", "moefabric.agents.remote.command"]
            return [*module, "--login", logins[server].to_json(), "--", *command]

        return cls(launcher, tuple(logins), addresses[first], MASTER_PORT, environment)


@dataclass(frozen=True)
class RankJob:
    """A command that runs at a place, a number of times on each server.

    Attributes:
        place: The servers.
        command: Program and arguments of every rank.
        ranks_per_server: Ranks of each server.
        environment: Variables of all ranks.
        run_id: Name of the job for its programs.
    """

    place: RankPlace
    command: Sequence[str]
    ranks_per_server: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    run_id: str = "none"

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks; the ranks of a server follow each other."""
        count = self.ranks_per_server
        return tuple(
            Rank(index * count + local, local, server)
            for index, server in enumerate(self.place.servers)
            for local in range(count)
        )

    def environment_of(self, rank: Rank) -> dict[str, str]:
        """Return the variables that torchrun sets, those of gloo, and the job's own.

        The job's own variables come last, so that they replace the others.
        """
        world = len(self.place.servers) * self.ranks_per_server
        variables = {
            "RANK": rank.number,
            "LOCAL_RANK": rank.local,
            "GROUP_RANK": rank.number // self.ranks_per_server,
            "ROLE_RANK": rank.number,
            "ROLE_NAME": "default",
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": self.ranks_per_server,
            "GROUP_WORLD_SIZE": len(self.place.servers),
            "ROLE_WORLD_SIZE": world,
            "MASTER_ADDR": self.place.master_address,
            "MASTER_PORT": self.place.master_port,
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            # Rank 0 offers the rendezvous itself; torchrun's own agent would do it otherwise.
            "TORCHELASTIC_USE_AGENT_STORE": False,
            "GLOO_SOCKET_IFNAME": RENDEZVOUS_INTERFACE,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            # Lines of output arrive when they are printed, also from ranks that are killed.
            "PYTHONUNBUFFERED": 1,
        }
        texts = {name: str(value) for name, value in variables.items()}
        of_server = self.place.environment.get(rank.server, {})
        return {**texts, **self.environment, **of_server}


def chosen_servers(all_servers: Sequence[str], chosen: Sequence[str] | None) -> tuple[str, ...]:
    """Return the chosen servers in their order, or all.

    Raises:
        SpecError: if the fabric lacks one of them, or one occurs twice.
    """
    if not chosen:
        return tuple(all_servers)
    if unknown := [server for server in chosen if server not in all_servers]:
        message = f"{', '.join(unknown)}: no such server; there are {', '.join(all_servers)}"
        raise SpecError([("servers", message)])
    if len(set(chosen)) < len(chosen):
        raise SpecError([("servers", f"{', '.join(chosen)}: each server may occur once")])
    return tuple(chosen)
