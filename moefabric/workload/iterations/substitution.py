"""Replaces lost GPUs and servers of a job by backup servers (arXiv 2501.03905, section 5.4).

A GPU of a backup server replaces a lost GPU; a whole backup server replaces a lost server. Backup
servers are connected to the EPS only, so that no circuit ends at them. The circuits of a region are
planned for its own remaining servers.

A rank all of whose GPUs are lost moves to the backup with its tokens and experts. A rank that has
lost some of its GPUs stays, and its tensor parallelism spans two servers: partial sums are reduced
within the server, exchanged with the backup and distributed within the server, twice in each layer
and pass (section 7.5).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from moefabric.core.demand import DemandMatrix, Placement
from moefabric.core.errors import AgentError
from moefabric.core.topology import Fabric
from moefabric.workload.iterations.iteration import Collective, Compute, Operation

TENSOR = "tensor"
"""Kind of the collective in which tensor parallelism across two servers exchanges partial sums."""


@dataclass(frozen=True, order=True)
class Gpu:
    """A GPU of a server: `s1/3`."""

    server: str
    index: int

    def __str__(self) -> str:
        return f"{self.server}/{self.index}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the GPU with this name.

        Args:
            text: Such as `s1/3`.

        Raises:
            ValueError: If the text names no GPU.
        """
        server, _, index = text.partition("/")
        if not server or not index.isdecimal():
            raise ValueError(f"{text!r} is not a GPU such as s1/3")
        return cls(server, int(index))


class NoBackupError(AgentError):
    """No backup is left for the lost servers."""


@dataclass(frozen=True)
class Losses:
    """Lost GPUs and servers; GPUs of a lost server needn't be listed."""

    gpus: frozenset[Gpu] = frozenset()
    servers: frozenset[str] = frozenset()

    def __or__(self, other: "Losses") -> "Losses":
        return Losses(self.gpus | other.gpus, self.servers | other.servers)

    def __bool__(self) -> bool:
        return bool(self.gpus or self.servers)


@dataclass(frozen=True)
class Substitutions:
    """The backup server of each lost server, and the backup GPU of each lost GPU."""

    servers: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[Gpu, Gpu] = field(default_factory=dict)

    def __str__(self) -> str:
        pairs = [*self.servers.items(), *self.gpus.items()]
        return ", ".join(f"{lost} by {backup}" for lost, backup in pairs) or "no substitutions"


def find_substitutes(
    fabric: Fabric, losses: Losses, previous: Substitutions | None = None
) -> Substitutions:
    """Choose backups for lost GPUs and servers.

    Previous substitutions that still work stay. Each lost server gets a backup server of its own.
    Then each lost GPU gets a GPU of a backup server that replaces no server and serves no other
    region. The order is that of the fabric, so that equal losses give equal substitutions.

    Args:
        fabric: The wired fabric.
        losses: All that is lost.
        previous: Substitutions so far.

    Raises:
        NoBackupError: If a server or GPU finds no backup; the message names it.
    """
    previous = previous or Substitutions()
    servers = _server_substitutes(fabric, losses, previous)
    return Substitutions(servers, _gpu_substitutes(fabric, losses, previous, servers))


def _server_substitutes(fabric: Fabric, losses: Losses, previous: Substitutions) -> dict[str, str]:
    lost = [server for server in fabric.primary_servers if server in losses.servers]
    chosen = {
        server: backup
        for server, backup in previous.servers.items()
        if server in lost and backup not in losses.servers
    }
    lending = {backup.server for gpu, backup in previous.gpus.items() if gpu in losses.gpus}
    taken = {*losses.servers, *chosen.values()}
    free = [backup for backup in fabric.backup_servers if backup not in taken]
    free.sort(key=lambda backup: backup in lending)
    for server in lost:
        if server not in chosen:
            if not free:
                raise _no_backup(fabric, f"server {server}")
            chosen[server] = free.pop(0)
    return {server: chosen[server] for server in lost}


def _gpu_substitutes(
    fabric: Fabric, losses: Losses, previous: Substitutions, servers: Mapping[str, str]
) -> dict[Gpu, Gpu]:
    unavailable = losses.servers | set(servers.values())
    working = set(fabric.primary_servers) - losses.servers
    lost = [gpu for gpu in losses.gpus if gpu.server in working]
    lost.sort(key=lambda gpu: (fabric.server_index[gpu.server], gpu.index))
    chosen = {
        gpu: backup
        for gpu, backup in previous.gpus.items()
        if gpu in lost and backup.server not in unavailable and backup not in losses.gpus
    }
    for gpu in lost:
        if gpu not in chosen:
            chosen[gpu] = _free_gpu(fabric, gpu, losses, unavailable, chosen)
    return {gpu: chosen[gpu] for gpu in lost}


def _free_gpu(
    fabric: Fabric, gpu: Gpu, losses: Losses, unavailable: frozenset[str], chosen: Mapping[Gpu, Gpu]
) -> Gpu:
    region, taken = fabric.region_of[gpu.server].name, {*chosen.values(), *losses.gpus}
    serves = {backup.server: fabric.region_of[lost.server].name for lost, backup in chosen.items()}
    for server in fabric.backup_servers:
        if server in unavailable or serves.get(server, region) != region:
            continue
        for index in range(fabric.gpus):
            if (candidate := Gpu(server, index)) not in taken:
                return candidate
    raise _no_backup(fabric, f"GPU {gpu}")


def _no_backup(fabric: Fabric, lost: str) -> NoBackupError:
    if not fabric.backup_servers:
        remedy = "give it some (wiring.backup: {servers: 1})"
        return NoBackupError(f"{lost} is lost and the fabric has no backup server: {remedy}")
    backups, remedy = ", ".join(fabric.backup_servers), "give the fabric more of them"
    return NoBackupError(
        f"{lost} is lost and no backup server is left for it ({backups}): {remedy}"
    )


def working_groups(fabric: Fabric, substitutions: Substitutions) -> dict[str, tuple[str, ...]]:
    """Return the servers that work for each region.

    The region's own servers come first, with backups in the places of lost ones, and then the
    servers that lend it GPUs.
    """
    groups = {}
    for region, servers in fabric.ep_groups.items():
        places = [substitutions.servers.get(server, server) for server in servers]
        gpus = sorted(substitutions.gpus.items())
        lending = [backup.server for gpu, backup in gpus if gpu.server in servers]
        groups[region] = tuple(dict.fromkeys([*places, *lending]))
    return groups


@dataclass(frozen=True)
class JobPlacement:
    """The servers and placements of a job on a fabric.

    Attributes:
        placements: The placement of each EP group.
        split_ranks: Pairs of servers that share a rank.
    """

    placements: tuple[Placement, ...]
    split_ranks: tuple[tuple[str, str], ...] = ()

    @property
    def servers(self) -> tuple[str, ...]:
        """All servers that work, group by group."""
        return tuple(server for group in self.placements for server in group.servers)


def job_placement(
    fabric: Fabric, placements: Iterable[Placement], tp: int, substitutions: Substitutions
) -> JobPlacement:
    """Return the servers and placements of a job after substitutions.

    Args:
        fabric: The wired fabric.
        placements: The placement of each EP group without any losses.
        tp: GPUs of a rank; ranks fill a server's GPUs in order.
        substitutions: The backups.
    """
    changed, split_ranks = [], dict[tuple[str, str], None]()
    groups = working_groups(fabric, substitutions).values()
    for planned, servers in zip(placements, groups, strict=True):
        placement, homes = planned, list[int]()
        for rank in range(placement.ranks):
            home, others = _rank_servers(placement, rank, tp, substitutions)
            homes.append(servers.index(home))
            split_ranks |= {(home, other): None for other in others}
        before = [placement.home(rank) for rank in range(placement.ranks)]
        if servers != placement.servers or homes != before:
            placement = replace(placement, servers=servers, homes=tuple(homes))
        changed.append(placement)
    return JobPlacement(tuple(changed), tuple(split_ranks))


def _rank_servers(
    placement: Placement, rank: int, tp: int, substitutions: Substitutions
) -> tuple[str, list[str]]:
    """Return the home server of a rank, and others with some of its GPUs."""
    home = placement.home(rank)
    server = placement.servers[home]
    if server in substitutions.servers:
        return substitutions.servers[server], []
    first = next(other for other in range(placement.ranks) if placement.home(other) == home)
    gpus = [Gpu(server, (rank - first) * tp + index) for index in range(tp)]
    backups = [substitutions.gpus[gpu].server for gpu in gpus if gpu in substitutions.gpus]
    others = list(dict.fromkeys(backups))
    return (others[0], others[1:]) if len(backups) == tp else (server, others)


def tensor_exchange(placement: JobPlacement, rank_bytes: float) -> DemandMatrix | None:
    """Return the bytes of one exchange of partial sums.

    Args:
        placement: The servers and placements of the job.
        rank_bytes: Bytes of a rank's tokens, which go in each direction.

    Returns:
        Bytes between all servers that work; None if no rank is on two servers.
    """
    if not placement.split_ranks:
        return None
    pairs = [pair for ends in placement.split_ranks for pair in (ends, ends[::-1])]
    return DemandMatrix.of_pairs(placement.servers, [(a, b, rank_bytes) for a, b in pairs])


def with_tensor_exchange(
    operations: Iterable[Operation], owed: DemandMatrix | None
) -> Iterator[Operation]:
    """Add an exchange of partial sums after each computation of an iteration.

    Args:
        operations: The operations of an iteration.
        owed: Bytes of one exchange; None adds nothing.
    """
    for operation in operations:
        yield operation
        if owed is not None and isinstance(operation, Compute):
            yield Collective(TENSOR, operation.direction, operation.layer, owed)
