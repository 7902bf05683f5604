import pytest

from moefabric.workload.graphs.execution_graph import WORLD, ExecutionGraph, Node

SEND = Node(1, "send", peer=1, size=8)
RECEIVE = Node(1, "receive", peer=0, size=8)


def test_graph_has_a_group_of_all_ranks() -> None:
    assert ExecutionGraph({1: (), 0: ()}).groups == {WORLD: (0, 1)}


def test_complete_graph_has_no_faults() -> None:
    nodes = (
        Node(0, "compute", duration_s=1.0, stream=0),
        Node(3, "collective", collective="all_to_all", size=8, splits=(2, 6), stream=0),
    )
    graph = ExecutionGraph({0: (*nodes, SEND), 1: (*nodes, RECEIVE)})
    assert list(graph.faults()) == []


@pytest.mark.parametrize(
    ("zero", "one", "fault"),
    [
        ((SEND,), (), "messages from rank 0 to 1 with tag 0 differ: 1 sends, 0 receives"),
        ((SEND, SEND), (RECEIVE,), "rank 0: a number names two operations"),
        ((Node(0, "compute", after=(4,)),), (), "rank 0, operation 0: it waits for operation 4, "),
        (
            (Node(0, "compute", after=(1,), stream=0), Node(1, "compute", stream=0)),
            (),
            "rank 0, operation 0: it waits for itself, through others",
        ),
        ((Node(0, "send", peer=7),), (), "rank 0, operation 0: rank 7 is not there"),
        (
            (Node(0, "collective", collective="barrier"),),
            (Node(0, "collective", collective="all_reduce"),),
            "group world: ranks 0 and 1 call other collectives",
        ),
        (
            (Node(0, "collective", collective="all_to_all", size=8, splits=(1, 6)),),
            (),
            "rank 0, operation 0: splits do not add up to 8 bytes to 2 ranks",
        ),
    ],
)
def test_fault_names_rank_and_operation(
    zero: tuple[Node, ...], one: tuple[Node, ...], fault: str
) -> None:
    faults = list(ExecutionGraph({0: zero, 1: one}).faults())
    assert any(found.startswith(fault) for found in faults), faults
