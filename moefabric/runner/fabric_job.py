"""Jobs of PyTorch's ranks on a fabric that is up: on which servers, and where they meet."""

import sys
from collections.abc import Mapping, Sequence

from moefabric.config.run_directory import FabricWiring
from moefabric.core.errors import SpecError
from moefabric.emulator.fabric import lifecycle
from moefabric.runner.rank_environment import Rank, RankJob


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


def fabric_job(
    wiring: FabricWiring,
    command: Sequence[str],
    servers: Sequence[str],
    ranks_per_server: int,
    environment: Mapping[str, str],
    *,
    by_agents: bool = False,
) -> RankJob:
    """Return a job whose ranks meet over the management network and talk over the fabric.

    Args:
        wiring: The fabric, which is up.
        command: Program and arguments of every rank.
        servers: In the order of their ranks.
        ranks_per_server: Ranks of each server.
        environment: Variables of all ranks.
        by_agents: Whether ranks that use the backend `moefabric` reach the agents of their servers.
    """
    own = {server: {"GLOO_SOCKET_IFNAME": wiring.interfaces_of(server).host} for server in servers}
    for server in servers if by_agents else ():
        own[server]["MOEFABRIC_AGENT"] = wiring.rank_address(server)
    fabric, first = wiring.fabric, servers[0]
    return RankJob(
        tuple(command),
        tuple(servers),
        ranks_per_server,
        wiring.management.server_address(fabric, first),
        lifecycle.free_port(fabric.name, first),
        environment=environment,
        server_environment=own,
        run_id=fabric.name,
    )


def print_line(_rank: Rank, stream: str, line: str) -> None:
    """Print a line of a rank on the same stream."""
    print(line, file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)


def print_tagged_line(rank: Rank, stream: str, line: str) -> None:
    """Print a line of a rank behind the rank's number and server."""
    print_line(rank, stream, f"[{rank.number} {rank.server}] {line}")
