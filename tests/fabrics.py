"""Fabrics that tests share: the paper's prototype, and any other one as a strategy."""

from hypothesis import strategies as st

from moefabric.circuits import Circuit, CircuitSet
from moefabric.topology import Eps, EpsKind, Fabric, Nic, Ocs, Region, Scale

MESH = (
    "s0/o0~s3/o0",
    "s0/o1~s2/o0",
    "s0/o2~s1/o0",
    "s1/o1~s2/o2",
    "s1/o2~s3/o2",
    "s2/o1~s3/o1",
)
"""Light between every two of four servers, as 3 optical NICs each allow."""


def fabric(
    optical: int = 3,
    electrical: int = 1,
    *,
    regions: tuple[int, ...] = (4,),
    eps: Eps | None = None,
    scale: Scale | None = None,
    settle_ns: int = 25_000_000,
) -> Fabric:
    """Regions of so many servers of 8 GPUs and NICs of 100 Gb/s, on one leaf unless an EPS is given: the prototype, by default."""
    made, first = [], 0
    for index, count in enumerate(regions):
        servers = tuple(f"s{first + i}" for i in range(count))
        ocs = Ocs(f"ocs{index}", max(2, count * optical), settle_ns) if optical else None
        made.append(Region(f"r{index}", index, servers, ocs))
        first += count
    wired = (eps or Eps(first)) if electrical else None
    return Fabric("test", tuple(made), 8, optical, electrical, 100e9, wired, scale or Scale())


@st.composite
def fabrics(
    draw: st.DrawFn,
    *,
    electrical: st.SearchStrategy[int] | None = None,
    kind: st.SearchStrategy[EpsKind] | None = None,
) -> Fabric:
    """Up to three regions of up to five servers, any few NICs, and leaves and spines of any kind."""
    return fabric(
        optical=draw(st.integers(1, 4)),
        electrical=draw(electrical or st.integers(1, 4)),
        regions=tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))),
        eps=Eps(
            draw(st.integers(1, 8)),
            draw(st.integers(0, 4)),
            draw(st.sampled_from([1.0, 2.0, 4.0])),
            draw(st.sampled_from(EpsKind) if kind is None else kind),
        ),
    )


@st.composite
def circuit_sets(draw: st.DrawFn, wired: Fabric) -> CircuitSet:
    """Light that a fabric can have: a matching of optical NICs, none on one server or across regions."""
    free: list[Nic] = draw(
        st.permutations([n for server in wired.servers for n in wired.optical_nics(server)])
    )
    most = draw(st.integers(0, len(free) // 2))
    pairs = [
        (a, b)
        for a, b in zip(free[::2], free[1::2], strict=False)
        if a.server != b.server and wired.region_of[a.server] is wired.region_of[b.server]
    ]
    return CircuitSet(frozenset(Circuit(a, b) for a, b in pairs[:most]))


@st.composite
def lit_fabrics(draw: st.DrawFn) -> tuple[Fabric, CircuitSet]:
    """A fabric and light that it can have."""
    wired = draw(fabrics())
    return wired, draw(circuit_sets(wired))
