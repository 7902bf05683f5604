"""The electrical packet switches (EPS): leaves and spines, and the leaf on which each NIC ends."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice, product, repeat
from math import ceil

from moefabric.core.link import EpsLink
from moefabric.core.nic import Nic


def uplink_name(leaf: str, spine: str) -> str:
    """Return the name of the link between a leaf and a spine: `leaf0~spine1`."""
    return f"{leaf}~{spine}"


class EpsKind(StrEnum):
    """The NICs that share a leaf of the EPS."""

    LEAF_SPINE = "leaf-spine"
    """All NICs of a server end on one leaf; at 1:1 it stands for a fat tree."""
    RAIL = "rail"
    """Rail-optimised: NICs of one number end on one leaf, of all servers of a pod."""


@dataclass(frozen=True)
class Eps:
    """The electrical packet switches: leaves, joined by spines if one leaf doesn't hold all NICs.

    A leaf of a leaf-spine holds all NICs of its servers. Rails have a leaf for each NIC of a
    server, and `servers_per_leaf` servers are a pod.

    Attributes:
        servers_per_leaf: Number of servers whose NICs end on a leaf.
        spines: Number of spines; 0 is as many as are needed, up to two.
        oversubscription: Downward rate of a leaf, relative to its upward rate.
        kind: The NICs that share a leaf.
        link: Behaviour of its links; None for links without delay and loss.
        hash_seed: Seed with which flows are hashed onto spines, as by ECMP; None if each pair's
            bytes spread evenly over them.
        nic_per_gpu: Whether a GPU sends and receives the bytes of all-to-alls by its own NIC; if
            not, a server's NICs share them evenly.
        pods: Number of servers of each pod, if some of a larger cluster's servers are missing
            (`moefabric.core.fabric_part`); empty if all pods but the last are full.

    Raises:
        ValueError: If a leaf has no servers or no upward rate.
    """

    servers_per_leaf: int
    spines: int = 0
    oversubscription: float = 1.0
    kind: EpsKind = EpsKind.LEAF_SPINE
    link: EpsLink | None = None
    hash_seed: int | None = None
    nic_per_gpu: bool = False
    pods: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the values."""
        if self.servers_per_leaf < 1:
            raise ValueError(f"{self.servers_per_leaf} servers on a leaf")
        if self.spines < 0 or not self.oversubscription > 0:
            raise ValueError(f"{self.spines} spines, {self.oversubscription:g}:1 oversubscribed")


@dataclass(frozen=True)
class EpsWiring:
    """The leaves and spines of a fabric, and the NICs that end on each leaf.

    Example:
        >>> nics = {name: (Nic.parse(f"{name}/e0"),) for name in ("s0", "s1", "s2")}
        >>> wiring = EpsWiring(Eps(servers_per_leaf=2), nics, 1)
        >>> wiring.leaves, wiring.spines, wiring.leaf_of("s2")
        (('leaf0', 'leaf1'), ('spine0',), 'leaf1')

    Attributes:
        eps: The packet switches; None if there are none.
        nics: The electrical NICs of each server, in the order of the servers.
        electrical: Number of electrical NICs of a server.
    """

    eps: Eps | None
    nics: Mapping[str, tuple[Nic, ...]]
    electrical: int

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Leaf switches."""
        if self.eps is None or not self.electrical:
            return ()
        return tuple(f"leaf{i}" for i in range(len(self.pods) * self.leaves_per_pod))

    @cached_property
    def spines(self) -> tuple[str, ...]:
        """Spine switches; none if every leaf holds every server."""
        if self.eps is None or not self.electrical or len(self.pods) < 2:
            return ()
        most = self.eps.servers_per_leaf if self.rail_optimised else self.electrical
        return tuple(f"spine{i}" for i in range(self.eps.spines or min(2, most)))

    @cached_property
    def pods(self) -> tuple[tuple[str, ...], ...]:
        """The servers of each pod: a group of servers whose NICs end on the same leaves."""
        if self.eps is None:
            return ()
        servers, most = iter(self.nics), self.eps.servers_per_leaf
        sizes = self.eps.pods or repeat(most, ceil(len(self.nics) / most))
        return tuple(tuple(islice(servers, size)) for size in sizes)

    @property
    def rail_optimised(self) -> bool:
        """True if the NICs of one number share a leaf, rather than those of a server."""
        return self.eps is not None and self.eps.kind is EpsKind.RAIL

    @property
    def leaves_per_pod(self) -> int:
        """Number of leaves on which the NICs of a pod's servers end."""
        return self.electrical if self.rail_optimised else 1

    @property
    def uplinks(self) -> tuple[tuple[str, str], ...]:
        """Links between leaves and spines."""
        return tuple(product(self.leaves, self.spines))

    def uplink_rate_bps(self, nic_rate_bps: float) -> float:
        """Return the rate of one link between a leaf and a spine.

        All uplinks of a leaf together carry the rate of its NICs divided by the oversubscription.

        Args:
            nic_rate_bps: Rate of each NIC; if they differ, that of the fastest ones.
        """
        if self.eps is None or not self.spines:
            return 0.0
        nics = self.eps.servers_per_leaf * (1 if self.rail_optimised else self.electrical)
        return nics * nic_rate_bps / self.eps.oversubscription / len(self.spines)

    def leaf_of(self, server: str) -> str:
        """Return the leaf on which a server's electrical NICs end; on rails, the first one."""
        return self._leaf_of[server]

    def leaves_of(self, servers: Iterable[str]) -> tuple[str, ...]:
        """Return the leaves on which electrical NICs of servers end, in the servers' order."""
        cables = (cable for server in servers for cable in self.cables[server])
        return tuple(dict.fromkeys(leaf for (_, leaf), _ in cables))

    @cached_property
    def _leaf_of(self) -> dict[str, str]:
        return {server: self.leaf_of_nic(nics[0]) for server, nics in self.nics.items()}

    @cached_property
    def cables(self) -> dict[str, tuple[tuple[tuple[str, str], tuple[str, str]], ...]]:
        """The links from each of a server's electrical NICs to its leaf, and back, by server."""
        leaves = self._leaf_of_nic
        return {
            server: tuple(((str(nic), leaves[nic]), (leaves[nic], str(nic))) for nic in nics)
            for server, nics in self.nics.items()
        }

    def leaf_of_nic(self, nic: Nic) -> str:
        """Return the leaf on which an electrical NIC ends."""
        return self._leaf_of_nic[nic]

    @cached_property
    def _leaf_of_nic(self) -> dict[Nic, str]:
        return {nic: leaf for leaf in self.leaves for nic in self.nics_under(leaf)}

    def nics_under(self, leaf: str) -> tuple[Nic, ...]:
        """Return the electrical NICs that end on a leaf."""
        pod, number = divmod(self.leaves.index(leaf), self.leaves_per_pod)
        chosen = slice(number, number + 1) if self.rail_optimised else slice(None)
        return tuple(nic for server in self.pods[pod] for nic in self.nics[server][chosen])
