"""Ranks of a job as torchrun numbers them, and the environment that tells each rank its number."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MASTER_PORT: Final = 29500
"""TCP port of the rendezvous; torchrun's default."""
RENDEZVOUS_INTERFACE: Final = "eth0"
"""Interface of a server through which ranks reach each other."""


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
class RankJob:
    """A command that runs on servers, a number of times on each.

    Attributes:
        command: Program and arguments of every rank.
        servers: In the order of their ranks.
        ranks_per_server: Ranks of each server.
        master_address: Address of the first server, where rank 0 offers the rendezvous.
        master_port: TCP port of the rendezvous.
        environment: Variables of all ranks.
        server_environment: Variables of the ranks of a server.
        run_id: Name of the job for its programs.
    """

    command: tuple[str, ...]
    servers: tuple[str, ...]
    ranks_per_server: int
    master_address: str
    master_port: int = MASTER_PORT
    environment: Mapping[str, str] = field(default_factory=dict)
    server_environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    run_id: str = "none"

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks; the ranks of a server follow each other."""
        count = self.ranks_per_server
        return tuple(
            Rank(index * count + local, local, server)
            for index, server in enumerate(self.servers)
            for local in range(count)
        )

    def environment_of(self, rank: Rank) -> dict[str, str]:
        """Return the variables that torchrun sets, those of gloo, and the job's own.

        The job's own variables come last, so that they replace the others.
        """
        world = len(self.servers) * self.ranks_per_server
        variables = {
            "RANK": rank.number,
            "LOCAL_RANK": rank.local,
            "GROUP_RANK": rank.number // self.ranks_per_server,
            "ROLE_RANK": rank.number,
            "ROLE_NAME": "default",
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": self.ranks_per_server,
            "GROUP_WORLD_SIZE": len(self.servers),
            "ROLE_WORLD_SIZE": world,
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": self.master_port,
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
        own = self.server_environment.get(rank.server, {})
        return {**texts, **self.environment, **own}
