"""Fabrics for tests: the paper's prototype, and strategies for any fabric and its circuits."""

from hypothesis import strategies as st

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.eps import Eps, EpsKind
from moefabric.core.nic import Nic
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale

MESH = ("s0/o0~s3/o0", "s0/o1~s2/o0", "s0/o2~s1/o0", "s1/o1~s2/o2", "s1/o2~s3/o2", "s2/o1~s3/o1")
"""Circuits between every two of four servers with 3 optical NICs each."""


def fabric(
    optical: int = 3,
    electrical: int = 1,
    *,
    regions: tuple[int, ...] = (4,),
    eps: Eps | None = None,
    scale: Scale | None = None,
    settle_ns: int = 25_000_000,
) -> Fabric:
    """Return a fabric; the default is the paper's prototype.

    Args:
        optical: optical NICs per server.
        electrical: electrical NICs per server.
        regions: number of servers of each region; a server has 8 GPUs and NICs of 100 Gb/s.
        eps: default: one leaf.
        scale: of rates and bytes.
        settle_ns: settle time of the OCSes.
    """
    region_list, first = [], 0
    for index, count in enumerate(regions):
        servers = tuple(f"s{first + i}" for i in range(count))
        ocs = Ocs(f"ocs{index}", max(2, count * optical), settle_ns) if optical else None
        region_list.append(Region(f"r{index}", index, servers, ocs))
        first += count
    switches = (eps or Eps(first)) if electrical else None
    return Fabric(
        "test", tuple(region_list), 8, optical, electrical, 100e9, switches, scale or Scale()
    )


@st.composite
def fabrics(draw: st.DrawFn, *, kind: st.SearchStrategy[EpsKind] | None = None) -> Fabric:
    """Draw a fabric of up to three regions, up to five servers each, with any kind of EPS."""
    return fabric(
        optical=draw(st.integers(1, 4)),
        electrical=draw(st.integers(1, 4)),
        regions=tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))),
        eps=Eps(
            draw(st.integers(1, 8)),
            draw(st.integers(0, 4)),
            draw(st.sampled_from([1.0, 2.0, 4.0])),
            draw(st.sampled_from(EpsKind) if kind is None else kind),
        ),
    )


@st.composite
def circuit_sets(draw: st.DrawFn, any_fabric: Fabric) -> CircuitSet:
    """Draw a matching of optical NICs between different servers of a region."""
    nics = [nic for server in any_fabric.servers for nic in any_fabric.optical_nics(server)]
    order: list[Nic] = draw(st.permutations(nics))
    limit = draw(st.integers(0, len(order) // 2))
    pairs = [
        (a, b)
        for a, b in zip(order[::2], order[1::2], strict=False)
        if a.server != b.server and any_fabric.region_of[a.server] is any_fabric.region_of[b.server]
    ]
    return CircuitSet(frozenset(Circuit(a, b) for a, b in pairs[:limit]))


@st.composite
def lit_fabrics(draw: st.DrawFn) -> tuple[Fabric, CircuitSet]:
    """Draw a fabric and circuits of it."""
    any_fabric = draw(fabrics())
    return any_fabric, draw(circuit_sets(any_fabric))
