"""Health: which GPUs and servers of a job are lost, and who works in their place (paper section 5.4).

A lost GPU's rank goes to a GPU of a backup server; a lost server's whole place goes to a backup server. Backup servers are joined by the EPS
alone, so whoever they stand in for has no light, and its region's light is planned for the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from moefabric.demand import DemandMatrix
from moefabric.errors import AgentError
from moefabric.topology import Fabric


@dataclass(frozen=True, order=True)
class Gpu:
    """A GPU of a server: `s1/3`."""

    server: str
    index: int

    def __str__(self) -> str:
        return f"{self.server}/{self.index}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The GPU that `s1/3` names. ValueError where it names none."""
        server, _, index = text.partition("/")
        if not server or not index.isdecimal():
            raise ValueError(f"{text!r} is not a GPU such as s1/3")
        return cls(server, int(index))


class NoBackupError(AgentError):
    """Nothing is left that could work in the place of what is lost."""


@dataclass(frozen=True)
class Lost:
    """What doesn't work. A GPU of a lost server needn't be told."""

    gpus: frozenset[Gpu] = frozenset()
    servers: frozenset[str] = frozenset()

    def __or__(self, more: "Lost") -> "Lost":
        return Lost(self.gpus | more.gpus, self.servers | more.servers)

    def __bool__(self) -> bool:
        return bool(self.gpus or self.servers)


@dataclass(frozen=True)
class Seats:
    """Who works in whose place: the backup server of a lost one, the backup GPU of a lost one."""

    servers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    gpus: Mapping[Gpu, Gpu] = field(default_factory=lambda: MappingProxyType({}))

    def __str__(self) -> str:
        moved = [*self.servers.items(), *self.gpus.items()]
        return ", ".join(f"{lost} by {instead}" for lost, instead in moved) or "everyone in his own place"


def seated(fabric: Fabric, lost: Lost, before: Seats | None = None) -> Seats:
    """Who works in whose place when this is lost. Whoever is well seated stays: nobody moves twice without need.

    Servers choose first, each a backup server of its own; then GPUs, each a GPU of a backup server that stands in for no server and serves no
    other region. In the order of the fabric, so that equal losses give equal seats. NoBackupError names who finds none.
    """
    before = before or Seats()
    servers = _servers(fabric, lost, before)
    return Seats(MappingProxyType(servers), MappingProxyType(_gpus(fabric, lost, before, servers)))


def _servers(fabric: Fabric, lost: Lost, before: Seats) -> dict[str, str]:
    wanting = [server for server in fabric.working if server in lost.servers]
    kept = {s: before.servers[s] for s in wanting if before.servers.get(s, s) not in {s, *lost.servers}}
    lent = {instead.server for gpu, instead in before.gpus.items() if gpu in lost.gpus}
    free = [backup for backup in fabric.backups if backup not in {*lost.servers, *kept.values()}]
    free.sort(key=lambda backup: backup in lent)
    for server in wanting:
        if server not in kept:
            if not free:
                raise NoBackupError(_none(fabric, f"server {server}"))
            kept[server] = free.pop(0)
    return {server: kept[server] for server in wanting}


def _gpus(fabric: Fabric, lost: Lost, before: Seats, servers: Mapping[str, str]) -> dict[Gpu, Gpu]:
    whole = lost.servers | set(servers.values())
    wanting = sorted(
        (gpu for gpu in lost.gpus if gpu.server in set(fabric.working) - lost.servers),
        key=lambda gpu: (fabric.index[gpu.server], gpu.index),
    )
    made: dict[Gpu, Gpu] = {}
    for gpu in wanting:
        instead = before.gpus.get(gpu)
        if instead is not None and instead.server not in whole and instead not in lost.gpus:
            made[gpu] = instead
    for gpu in wanting:
        if gpu not in made:
            made[gpu] = _free_gpu(fabric, gpu, lost, whole, made)
    return {gpu: made[gpu] for gpu in wanting}


def _free_gpu(fabric: Fabric, gpu: Gpu, lost: Lost, whole: Iterable[str], made: Mapping[Gpu, Gpu]) -> Gpu:
    region, taken = fabric.region_of[gpu.server].name, set(made.values())
    serves = {instead.server: fabric.region_of[mine.server].name for mine, instead in made.items()}
    for backup in fabric.backups:
        if backup in set(whole) or serves.get(backup, region) != region:
            continue
        for index in range(fabric.gpus):
            found = Gpu(backup, index)
            if found not in taken and found not in lost.gpus:
                return found
    raise NoBackupError(_none(fabric, f"GPU {gpu}"))


def _none(fabric: Fabric, who: str) -> str:
    if not fabric.backups:
        return (
            f"{who} is lost and the fabric has no backup server: give it some (wiring.backup: {{servers: 1}})"
        )
    return f"{who} is lost and no backup server is left for it ({', '.join(fabric.backups)}): give the fabric more of them"


def groups(fabric: Fabric, seats: Seats) -> dict[str, tuple[str, ...]]:
    """The servers that work for each region: stand-ins in the places of the lost, then those that lend it GPUs."""
    made = {}
    for region, servers in fabric.groups.items():
        places = [seats.servers.get(server, server) for server in servers]
        lent = [instead.server for gpu, instead in sorted(seats.gpus.items()) if gpu.server in servers]
        made[region] = tuple(dict.fromkeys([*places, *lent]))
    return made


def planned_for(servers: Sequence[str], demand: DemandMatrix) -> DemandMatrix:
    """What a region's controller is told: the demand between its own servers. The lost owe nothing, and stand-ins are the EPS's affair."""
    there = [server for server in servers if server in demand.servers]
    if len(there) == len(servers):
        return demand.of(servers)
    known = demand.of(there)
    rows = [[0.0] * len(servers) for _ in servers]
    at = {server: position for position, server in enumerate(servers)}
    for i, src in enumerate(there):
        for j, dst in enumerate(there):
            rows[at[src]][at[dst]] = float(known.array[i, j])
    return DemandMatrix(servers, rows)
