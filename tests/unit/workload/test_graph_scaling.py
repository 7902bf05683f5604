import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node
from moefabric.workload.graphs.folding import leading_operations, scaled


def exchange(number: int, splits: tuple[int, ...], after: tuple[int, ...] = ()) -> Node:
    size = sum(splits)
    return Node(
        number, "collective", collective="all_to_all", size=size, splits=splits, after=after
    )


def graph_of(*ranks: tuple[Node, ...]) -> ExecutionGraph:
    return ExecutionGraph(dict(enumerate(ranks)))


def test_first_operations_of_each_rank_remain() -> None:
    nodes = tuple(Node(n, "compute", after=(n - 1,) if n else ()) for n in range(5))
    graph = leading_operations(graph_of(nodes, nodes), 3)
    assert [len(own) for own in graph.ranks.values()] == [3, 3]
    assert graph.notes == ("The first 3 operations of each rank are replayed: 6 of 10.",)
    assert list(graph.faults()) == []
    alone = leading_operations(graph_of(nodes, nodes), 1)
    assert alone.notes == ("The first operation of each rank is replayed: 2 of 10.",)


def test_collective_that_a_rank_has_not_reached_is_left_out_with_its_followers() -> None:
    early = (exchange(0, (4, 4)), Node(1, "compute", after=(0,)), Node(2, "compute"))
    late = (Node(0, "compute"), Node(1, "compute"), exchange(2, (4, 4)))
    graph = leading_operations(graph_of(early, late), 2)
    assert [[node.number for node in own] for own in graph.ranks.values()] == [[], [0, 1]]
    assert list(graph.faults()) == []


def test_collectives_keep_their_partners_when_an_earlier_one_is_left_out() -> None:
    """The first exchange waits for an operation that is cut off; the second one does not."""
    waiting = (exchange(0, (4, 4), after=(9,)), exchange(1, (8, 8)), Node(9, "compute"))
    other = (exchange(0, (4, 4)), exchange(1, (8, 8)))
    graph = leading_operations(graph_of(waiting, other), 2)
    assert [[node.size for node in own] for own in graph.ranks.values()] == [[16], [16]]


def test_message_without_its_receive_is_left_out() -> None:
    sends = (Node(0, "send", peer=1, size=8), Node(1, "send", peer=1, size=8))
    receives = (Node(0, "receive", peer=0, size=8), Node(1, "compute"), Node(2, "receive", peer=0))
    graph = leading_operations(graph_of(sends, receives), 2)
    assert [[node.number for node in own] for own in graph.ranks.values()] == [[0], [0, 1]]
    assert list(graph.faults()) == []


def test_short_graph_is_returned_as_it_is() -> None:
    graph = graph_of((Node(0, "compute"),))
    assert leading_operations(graph, 1) is graph
    assert scaled(graph, 1) is graph


@given(
    st.lists(st.integers(0, 10**9), min_size=2, max_size=6).filter(any),
    st.floats(0.01, 1e6),
    st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "broadcast"]),
)
def test_scaled_sizes_are_whole_numbers_and_near_the_factor(
    splits: list[int], factor: float, kind: str
) -> None:
    ranks = len(splits)
    nodes = (
        exchange(0, tuple(splits)),
        Node(1, "collective", collective=kind, size=sum(splits)),  # type: ignore[arg-type]
    )
    for own in scaled(graph_of(*[nodes] * ranks), factor).ranks.values():
        assert sum(own[0].splits) == own[0].size
        for before, after in zip(splits, own[0].splits, strict=True):
            assert after % 4 == 0
            assert (after > 0) == (before > 0)
            assert abs(after - before / factor) <= 4
        unit = 4 if kind == "all_gather" else 4 * ranks
        assert own[1].size % unit == 0
        assert abs(own[1].size - sum(splits) / factor) <= unit


@pytest.mark.parametrize("kind", ["compute", "send", "receive"])
def test_sizes_of_nothing_stay_nothing(kind: str) -> None:
    node = Node(0, kind, peer=1, duration_s=2.0)  # type: ignore[arg-type]
    assert scaled(ExecutionGraph({0: (node,)}), 8.0).ranks[0] == (node,)
