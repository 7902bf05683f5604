"""Places where the ranks of a job run and meet: a fabric that is up, or real hosts."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.errors import SpecError
from moefabric.core.server_host import HostLogin
from moefabric.emulator.fabric import node_commands
from moefabric.execution.programs.rank_environment import MASTER_PORT, Rank, RankJob
from moefabric.execution.programs.rank_processes import Launcher
from moefabric.runtime.run_directory import FabricWiring


def _host_argv(
    logins: Mapping[str, HostLogin], server: str, command: Sequence[str]
) -> Sequence[str]:
    """Return the argv that runs a command on a real host, and ends it with the local process.

    The command starts in the folder of the caller's name there, if there is one.
    """
    module = [sys.executable, "-m", "moefabric.agents.remote.command"]
    return [*module, "--login", logins[server].to_json(), "--", *command]


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
    master_port: int
    environment: Mapping[str, Mapping[str, str]]

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
            wiring: The fabric.
            servers: The servers.
            by_agents: Whether ranks that use the backend `moefabric` reach the agents of their
                servers.
            over_management: Whether gloo talks over the management network instead of the fabric.
        """
        own: dict[str, dict[str, str]] = {}
        for server in servers:
            names = wiring.interfaces_of(server)
            interface = names.management if over_management else names.host
            own[server] = {"GLOO_SOCKET_IFNAME": interface}
            if by_agents:
                own[server]["MOEFABRIC_AGENT"] = wiring.rank_address(server)
        first, name = servers[0], wiring.fabric.name
        return cls(
            partial(node_commands.exec_argv, name),
            tuple(servers),
            wiring.management.server_address(wiring.fabric, first),
            node_commands.free_port(name, first),
            own,
        )

    @classmethod
    def on_hosts(
        cls, logins: Mapping[str, HostLogin], addresses: Mapping[str, str], fleet: Fleet
    ) -> Self:
        """Return real hosts, whose ranks meet and talk over the hosts' own network.

        Args:
            logins: How to log in to each host, by server.
            addresses: Address of each host.
            fleet: Agents of the hosts.
        """
        own, first = {}, next(iter(logins))
        for server in logins:
            facts = fleet.facts[server]
            named = {address: name for name, address in facts["interfaces"].items()}
            # Without an interface, gloo takes the one that the host's name leads to, often lo.
            interface = named.get(addresses[server], "")
            own[server] = {"GLOO_SOCKET_IFNAME": interface, "MOEFABRIC_AGENT": facts["ranks"]}
        launcher = partial(_host_argv, logins)
        return cls(launcher, tuple(logins), addresses[first], MASTER_PORT, own)

    def job(
        self,
        command: Sequence[str],
        ranks_per_server: int,
        environment: Mapping[str, str],
        name: str,
    ) -> RankJob:
        """Return a job whose ranks run here.

        Args:
            command: Program and arguments of every rank.
            ranks_per_server: Ranks of each server.
            environment: Variables of all ranks.
            name: Name of the job for its programs.
        """
        return RankJob(
            tuple(command),
            self.servers,
            ranks_per_server,
            self.master_address,
            self.master_port,
            environment=environment,
            server_environment=self.environment,
            run_id=name,
        )


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


def print_line(_rank: Rank, stream: str, line: str) -> None:
    """Print a line of a rank on the same stream."""
    print(line, file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)


def print_tagged_line(rank: Rank, stream: str, line: str) -> None:
    """Print a line of a rank behind the rank's number and server."""
    print_line(rank, stream, f"[{rank.number} {rank.server}] {line}")
