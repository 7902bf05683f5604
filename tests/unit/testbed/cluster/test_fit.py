"""Parts of fabrics on nodes: each on one node, refused with numbers where there is no room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.errors import UnsupportedError
from moefabric.core.machines import Strategy
from moefabric.core.resource_needs import ResourceNeeds
from moefabric.testbed.cluster.ray_reservation import ClusterNode, check_room

GB = 1_000_000_000


def node(name: str, cores: float, memory_bytes: int = 16 * GB) -> ClusterNode:
    return ClusterNode(
        name, f"id-{name}", f"192.0.2.{len(name)}", ResourceNeeds(cores, memory_bytes)
    )


def parts(*cores: float) -> dict[str, ResourceNeeds]:
    return {f"r{number}": ResourceNeeds(one, GB) for number, one in enumerate(cores)}


def test_a_part_without_room_is_refused_with_numbers() -> None:
    with pytest.raises(UnsupportedError, match="r1 needs 4 cores, no node has more than 2 left"):
        check_room(parts(1, 4), [node("a", 2), node("b", 1)], Strategy.PACK)


def test_a_part_without_memory_is_refused_with_numbers() -> None:
    with pytest.raises(UnsupportedError, match=r"r0 needs 1000 MB, no node has more than 900 MB"):
        check_room(parts(1), [node("a", 2, 900_000_000)], Strategy.PACK)


@pytest.mark.parametrize(
    ("strategy", "where"),
    [
        (Strategy.PACK, "together"),
        (Strategy.SPREAD, "together"),
        (Strategy.STRICT_PACK, "on one node"),
        (Strategy.STRICT_SPREAD, "on a node each"),
    ],
)
def test_parts_without_room_for_all_are_refused_with_numbers(
    strategy: Strategy, where: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"need 6 cores and 3000 MB {where}.*a 3 co"):
        check_room(parts(2, 2, 2), [node("a", 3), node("b", 2)], strategy)


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=8),
    st.lists(st.integers(1, 16), min_size=1, max_size=5),
    st.sampled_from(Strategy),
)
def test_no_node_is_overbooked(cores: list[int], nodes: list[int], strategy: Strategy) -> None:
    needs, cluster = parts(*cores), [node(f"n{i}", c, 9 * GB) for i, c in enumerate(nodes)]
    try:
        check_room(needs, cluster, strategy)
    except UnsupportedError:
        return
    assert sum(cores) <= sum(nodes)
    assert len(cores) <= sum(one.free.memory_bytes // GB for one in cluster)
    assert strategy is not Strategy.STRICT_SPREAD or len(cores) <= len(nodes)
    assert strategy is not Strategy.STRICT_PACK or sum(cores) <= max(nodes)
