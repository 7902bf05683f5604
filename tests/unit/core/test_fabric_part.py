"""A part of a cluster shares links as the cluster does."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps, EpsKind
from moefabric.core.fabric_part import fabric_part
from moefabric.core.flows import Flow
from moefabric.core.paths import eps_paths
from moefabric.core.routes import route
from moefabric.core.rules import eps_rules
from moefabric.core.topology import Fabric
from moefabric.simulator.fluid import link_rate_bps
from tests.support.fabrics import fabric


@st.composite
def parts(draw: st.DrawFn) -> tuple[Fabric, Fabric]:
    eps = Eps(
        draw(st.integers(1, 7)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([1.0, 2.0])),
        draw(st.sampled_from(EpsKind)),
    )
    cluster = fabric(1, draw(st.integers(1, 4)), regions=(3, 3, 3, 3), eps=eps)
    peers = draw(st.sets(st.sampled_from(cluster.servers[:3] + cluster.servers[6:])))
    return cluster, fabric_part(cluster, "part", ["r1"], peers)


def routes(one: Fabric, pair: tuple[str, str]) -> list[tuple[tuple[str, str], ...]]:
    paths = eps_paths(one, *pair)
    return [route(one, CircuitSet(), Flow(*pair, path.name, 1.0)) for path in paths]


@given(parts())
def test_flows_share_the_same_links_in_a_part(fabrics: tuple[Fabric, Fabric]) -> None:
    cluster, part = fabrics
    renamed: dict[tuple[str, str], tuple[str, str]] = {}
    for pair in permutations(part.servers, 2):
        # A part whose servers are all in one pod has no spines, and needs none.
        for links, own in zip(routes(cluster, pair), routes(part, pair), strict=False):
            assert len(links) == len(own)
            for link, counterpart in zip(links, own, strict=True):
                assert renamed.setdefault(link, counterpart) == counterpart
                assert link_rate_bps(cluster, link) == link_rate_bps(part, counterpart)
    assert len(set(renamed.values())) == len(renamed)


@given(parts())
def test_part_has_the_emulated_region_and_its_peers_only(fabrics: tuple[Fabric, Fabric]) -> None:
    _, part = fabrics
    emulated = [region for region in part.regions if not region.modelled]
    assert [region.name for region in emulated] == ["r1"]
    assert part.servers == tuple(sorted(part.servers, key=lambda name: int(name[1:])))
    assert all(region.ocs is None for region in part.regions if region.modelled)
    assert {rule.switch for rule in eps_rules(part)} <= {*part.leaves, *part.spines}
