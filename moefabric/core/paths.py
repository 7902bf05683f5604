"""Paths: the NIC by which a flow leaves, the spine or relay tree that it takes, its DSCP mark.

A pair of servers on different leaves spreads its bytes evenly over its NICs and evenly over all
spines. If each NIC had one spine, 4 NICs would load one of 3 spines twice as much as the others.
So a NIC whose bytes use several spines has a path for each: `e1.2` leaves by `e1` and crosses
`spine2`. Evenly loaded uplinks of a leaf are full only if all of them are. Where flows are hashed
(`Eps.hash_seed`), all bytes of a pair on one NIC cross one spine, whatever else crosses it.

Where each GPU has its own NIC (`Eps.nic_per_gpu`), a path also has the NIC by which it arrives, if
that has another number: `e1-3` leaves by `e1` and arrives by `e3`. Leaves choose this NIC by the
address of its GPU.

A path over several circuits is named after its relay tree (`moefabric.core.forwarding`): `r3` takes
the tree whose root is server number 3 of the region. Where circuits are parallel, a tree has lanes
that take different ones: `r3` is the first, `r3.1` the second.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import pairwise, product
from math import gcd
from types import MappingProxyType
from typing import Final

from moefabric.core.topology import Fabric, Region

MARKS: Final = 63
"""Greatest DSCP; 0 marks nothing."""
MOST_SERVERS_FOR_DETOURS: Final = 16
"""Servers of the largest region whose relay trees make detours: more take long to plan."""
_REGIONS_PER_SPINE: Final = 16
"""Regions for each spine from which on leaves have a route for each region."""
_OPTICAL_MARK: Final = 1
_ELECTRICAL_MARK: Final = 17


@dataclass(frozen=True)
class EpsPath:
    """A path over the EPS.

    Attributes:
        nic: Number of the sender's electrical NIC, and of the receiver's.
        spine: Number of the spine; None if the NIC's number selects it, or none is crossed.
        share: Part of a pair's bytes that it carries, 0 to 1.
    """

    nic: int
    spine: int | None
    share: float

    @cached_property
    def name(self) -> str:
        """The name that flows, connections and rules use."""
        return f"e{self.nic}" if self.spine is None else f"e{self.nic}.{self.spine}"


def nic_number(path: str) -> int:
    """Return the number of the NIC by which a path (`o1`, `e0`, `e0-3.2`) leaves a server."""
    return int(path[1:].partition(".")[0].partition("-")[0])


def arrival_number(path: str) -> int:
    """Return the number of the NIC by which a path over the EPS arrives at a server."""
    return int(path[1:].partition(".")[0].rpartition("-")[2])


def is_optical(path: str) -> bool:
    """Return whether a path leaves a server by an optical NIC (`o1`) or a relay tree (`r3`)."""
    return path[0] in "or"


def relay_path(fabric: Fabric, root: str, lane: int = 0) -> str:
    """Return the path that takes a lane of the relay tree of a server."""
    tree = f"r{fabric.region_of[root].servers.index(root)}"
    return f"{tree}.{lane}" if lane else tree


def relay_root(fabric: Fabric, src: str, path: str) -> str | None:
    """Return the root of the relay tree that a path of a sender takes, if it takes one."""
    return fabric.region_of[src].servers[nic_number(path)] if path[0] == "r" else None


def relay_lane(path: str) -> int:
    """Return the lane that a path takes of its relay tree."""
    return int(path.partition(".")[2] or 0)


def relay_paths(fabric: Fabric, src: str, dst: str) -> tuple[str, ...]:
    """Return the paths by which other servers of its region may forward for a pair."""
    region = fabric.region_of[src]
    if not fabric.forwarding or region != fabric.region_of[dst]:
        return ()
    lanes = range(relay_lanes(fabric, region))
    roots = [root for root in region.servers if root not in (src, dst)]
    return tuple(relay_path(fabric, root, lane) for root in roots for lane in lanes)


def relay_lanes(fabric: Fabric, region: Region) -> int:
    """Return how many lanes the relay trees of a region have, as far as marks suffice.

    They suit circuits that are spread evenly over all pairs. If all pairs have equally many, a lane
    for each of parallel circuits suffices. Otherwise lanes make detours, and there are two layers
    of lanes with different detours (`moefabric.core.detours`). Where hosts forward, packets have no
    mark and take the first of parallel circuits.
    """
    if fabric.forwarding_by_hosts:
        return 1
    marks = len(_free_marks(fabric.optical, fabric.electrical)) - len(spine_paths(fabric))
    most = max(1, marks // fabric.largest_region)
    least, more = divmod(fabric.optical, max(1, len(region.servers) - 1))
    if not more or len(region.servers) > MOST_SERVERS_FOR_DETOURS:
        return min(max(1, least), most)
    return min(2 * lanes_of_layer(least, least + 1), most)


def lanes_of_layer(fewest: int, most: int) -> int:
    """Return how many lanes let each circuit of a server begin and end a path.

    Args:
        fewest: The fewest parallel circuits of two servers.
        most: The most parallel circuits of two servers.
    """
    return most if fewest == most else max(1, fewest + most - 1)


def spine_number(path: str) -> int | None:
    """Return the number of the spine that a path names, if it names one."""
    spine = path.partition(".")[2]
    return int(spine) if spine else None


def eps_paths(fabric: Fabric, src: str, dst: str) -> tuple[EpsPath, ...]:
    """Return the paths over which a pair of servers spreads its bytes on the EPS."""
    if not fabric.spines or fabric.eps_wiring.leaf_of(src) == fabric.eps_wiring.leaf_of(dst):
        return _nic_paths(fabric.electrical)
    if (seed := _hash_seed(fabric)) is None:
        return spine_paths(fabric) or _nic_paths(fabric.electrical)
    pair = seed, fabric.server_number[src], fabric.server_number[dst]
    return _hashed_paths(pair, fabric.electrical, len(fabric.spines))


def path_names(fabric: Fabric, src: str, dst: str) -> Collection[str]:
    """Return the names of all paths that flows of a pair of servers may take over the EPS."""
    if not fabric.nic_per_gpu:
        return [path.name for path in eps_paths(fabric, src, dst)]
    ends = product(range(fabric.electrical), repeat=2)
    return dict.fromkeys(name for pair in ends for name in nic_paths(fabric, src, dst, *pair))


def nic_paths(fabric: Fabric, src: str, dst: str, near: int, far: int) -> list[str]:
    """Return the paths that share the bytes from a NIC of a server to a NIC of another one evenly.

    On rails, both are the NIC of the receiving GPU: GPUs hand bytes over to the one on its rail, as
    NCCL does (PXN).
    """
    eps, spines = fabric.eps_wiring, len(fabric.spines)
    near = far if eps.rail_optimised else near
    name = f"e{near}" if near == far else f"e{near}-{far}"
    if spines < 2 or eps.leaf_of(src) == eps.leaf_of(dst):
        return [name]
    if (seed := _hash_seed(fabric)) is None:
        return [f"{name}.{spine}" for spine in range(spines)]
    flow = seed, fabric.server_number[src], fabric.server_number[dst], near
    return [f"{name}.{_hashed_spine(flow if near == far else (*flow, far), spines)}"]


def gpu_nic(fabric: Fabric, gpu: int) -> int:
    """Return the number of the electrical NIC of a GPU."""
    return gpu * fabric.electrical // fabric.gpus


def nic_address(fabric: Fabric, server: str, nic: int) -> str:
    """Return the address of a server that belongs to an electrical NIC: its first GPU's.

    All NICs have that of the first GPU unless each GPU has its own NIC.
    """
    gpu = -(-nic * fabric.gpus // fabric.electrical) if fabric.nic_per_gpu else 0
    return fabric.addressing.addresses(server)[gpu]


def spine_of_mark(fabric: Fabric, path: str, dst: str | None = None) -> int:
    """Return the number of the spine that marked packets cross.

    Args:
        fabric: The wired fabric, which has spines.
        path: The path; if it names no spine, its NIC selects one.
        dst: The receiver, which selects the spine if all NICs of a leaf have the same number.
    """
    spine = spine_number(path)
    if spine is not None:
        return spine
    if dst and (fabric.electrical == 1 or fabric.eps_wiring.rail_optimised):
        return receiver_spine(fabric, dst)
    return nic_number(path) % len(fabric.spines)


def receiver_spine(fabric: Fabric, dst: str) -> int:
    """Return the number of the spine that packets without a mark cross to a server."""
    number = fabric.server_number[dst]
    if routes_by_region(fabric):
        servers = fabric.region_of[dst].servers
        number = fabric.server_number[servers[0]] // len(servers)
    return number % len(fabric.spines)


def routes_by_region(fabric: Fabric) -> bool:
    """Return whether leaves have one route up to all servers of a region, instead of one each.

    Many regions spread over the spines as evenly as their servers, by far fewer rules.
    """
    regions, spines = len(fabric.regions), len(fabric.spines)
    return not fabric.eps_wiring.rail_optimised and regions >= _REGIONS_PER_SPINE * spines > 0


def spine_paths(fabric: Fabric) -> tuple[EpsPath, ...]:
    """Return the paths that name a spine; none if NICs select spines evenly."""
    eps = fabric.eps_wiring
    return _spine_paths(eps.electrical, len(eps.spines), all_pairs=_has_all_pairs(fabric))


def dscp(fabric: Fabric, path: str) -> int:
    """Return the DSCP with which a sender marks a flow so that it takes a path.

    Args:
        path: A NIC within its server (`o1`, `e0`), a NIC and a spine (`e0.2`), or a lane of a relay
            tree (`r3`, `r3.1`).
    """
    spine = spine_number(path)
    if path[0] == "r":
        number = relay_lane(path) * fabric.largest_region + nic_number(path)
        return _free_marks(fabric.optical, fabric.electrical)[-1 - number]
    if spine is None:
        return (_OPTICAL_MARK if path[0] == "o" else _ELECTRICAL_MARK) + nic_number(path)
    eps, all_pairs = fabric.eps_wiring, _has_all_pairs(fabric)
    marks = _spine_marks(fabric.optical, eps.electrical, len(eps.spines), all_pairs=all_pairs)
    return marks[f"e{nic_number(path)}.{spine}"]


def _has_all_pairs(fabric: Fabric) -> bool:
    """Return whether some flow may leave by any NIC and cross any spine."""
    by_nic = fabric.eps_wiring.rail_optimised or fabric.nic_per_gpu
    return by_nic or _hash_seed(fabric) is not None


def _hash_seed(fabric: Fabric) -> int | None:
    """Return the seed with which flows are hashed onto spines, if there are several."""
    return fabric.eps.hash_seed if fabric.eps is not None and len(fabric.spines) > 1 else None


def marks_needed(fabric: Fabric) -> int:
    """Return how many different marks a fabric's paths have; `MARKS` is the limit."""
    needed = fabric.optical + fabric.electrical + len(spine_paths(fabric))
    if fabric.forwarding and not fabric.forwarding_by_hosts:
        lanes = max(relay_lanes(fabric, region) for region in fabric.regions)
        needed += lanes * fabric.largest_region
    return needed


@lru_cache
def _nic_paths(electrical: int) -> tuple[EpsPath, ...]:
    return tuple(EpsPath(nic, None, 1 / electrical) for nic in range(electrical))


@lru_cache(maxsize=1 << 16)
def _hashed_paths(pair: tuple[int, int, int], electrical: int, spines: int) -> tuple[EpsPath, ...]:
    """Return a path for each NIC, whose spine is a hash of seed, servers and the NIC's number."""
    return tuple(
        EpsPath(nic, _hashed_spine((*pair, nic), spines), 1 / electrical)
        for nic in range(electrical)
    )


def _hashed_spine(flow: tuple[int, ...], spines: int) -> int:
    return int.from_bytes(blake2b(repr(flow).encode(), digest_size=8).digest()) % spines


@lru_cache
def _spine_paths(electrical: int, spines: int, *, all_pairs: bool) -> tuple[EpsPath, ...]:
    """Divide a pair's bytes into parts that keep to one NIC and one spine.

    On rails, a leaf has one NIC of each server and its uplinks carry that NIC's bytes, so every NIC
    uses every spine; so it may where flows are hashed or GPUs have their own NICs. Otherwise NICs
    and spines divide the bytes like two rulers laid side by side.
    """
    if spines < 2 or not electrical:
        return ()
    if all_pairs:
        share = 1 / (electrical * spines)
        return tuple(EpsPath(n, s, share) for n, s in product(range(electrical), range(spines)))
    if electrical % spines == 0:
        return ()
    whole = electrical * spines // gcd(electrical, spines)
    ends = {n * whole // electrical for n in range(electrical + 1)}
    ends |= {s * whole // spines for s in range(spines + 1)}
    return tuple(
        EpsPath(first * electrical // whole, first * spines // whole, (last - first) / whole)
        for first, last in pairwise(sorted(ends))
    )


@lru_cache
def _spine_marks(
    optical: int, electrical: int, spines: int, *, all_pairs: bool
) -> Mapping[str, int]:
    """Return the marks of paths that name a spine; no NIC has these marks."""
    paths = _spine_paths(electrical, spines, all_pairs=all_pairs)
    marks = _free_marks(optical, electrical)
    return MappingProxyType({path.name: mark for path, mark in zip(paths, marks, strict=False)})


@lru_cache
def _free_marks(optical: int, electrical: int) -> tuple[int, ...]:
    """Return the marks that no NIC has. Paths with a spine take the first, trees the last."""
    taken = {_OPTICAL_MARK + n for n in range(optical)}
    taken |= {_ELECTRICAL_MARK + n for n in range(electrical)}
    return tuple(mark for mark in range(1, MARKS + 1) if mark not in taken)
