"""Connection matrices: exact round trips, htsim's golden inputs, triggers, limits, faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError, TraceError
from moefabric.traces.connection_graph import (
    ConnectionMatrixReader,
    ConnectionMatrixWriter,
    graph_matrix,
    matrix_graph,
)
from moefabric.traces.connection_matrix import (
    MAX_BYTES,
    Connection,
    ConnectionMatrix,
    Trigger,
    demand_matrix,
    matrix_text,
    parse_matrix,
)
from moefabric.traces.formats import trace_reader
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node
from tests.support.execution_graphs import message_graphs
from tests.support.graph_bytes import message_bytes, pair_bytes


@st.composite
def matrices(draw: st.DrawFn) -> ConnectionMatrix:
    """Draw flows, each of which is started by a time or by ends of flows before it."""
    nodes = draw(st.integers(2, 4))
    flows: list[Connection] = []
    triggers: list[Trigger] = []
    for number in range(1, draw(st.integers(1, 10)) + 1):
        source = draw(st.integers(0, nodes - 1))
        target = (source + draw(st.integers(1, nodes - 1))) % nodes
        flow = Connection(source, target, draw(st.integers(1, MAX_BYTES)), number)
        idle = [
            (index, event)
            for index, one in enumerate(flows)
            for event in ("send_done", "receive_done")
            if getattr(one, event) is None
        ]
        triggered: bool = draw(st.booleans())
        if idle and triggered:
            pulls = draw(st.lists(st.sampled_from(idle), unique=True, min_size=1, max_size=3))
            trigger = len(triggers) + 1
            kind = "oneshot" if len(pulls) == 1 else "barrier"
            triggers.append(Trigger(trigger, kind, len(pulls)))  # type: ignore[arg-type]
            for index, event in pulls:
                flows[index] = replace(flows[index], **{event: trigger})
            flow = replace(flow, trigger=trigger)
        else:
            flow = replace(flow, start_ps=draw(st.integers(0, 10**13)))
        flows.append(flow)
    return ConnectionMatrix(nodes, tuple(flows), tuple(triggers))


@given(matrices())
def test_matrix_comes_back_from_its_text_and_from_its_graph(matrix: ConnectionMatrix) -> None:
    assert parse_matrix(matrix_text(matrix)) == matrix
    assert graph_matrix(matrix_graph(matrix)) == (matrix, ())


@given(message_graphs())
def test_graph_that_triggers_express_keeps_its_messages(graph: ExecutionGraph) -> None:
    try:
        matrix, _ = graph_matrix(graph)
    except SpecError as error:
        assume("can't express" not in str(error))
        raise
    written = matrix_graph(parse_matrix(matrix_text(matrix)))
    assert np.array_equal(message_bytes(written), message_bytes(graph))


def test_every_word_of_a_file_comes_back() -> None:
    text = (
        "Nodes 4\nConnections 3\nTriggers 2\nFailures 1\n"
        "0->1 id 7 start 5 size 9 recv_done_trigger 1 prio 2\n"
        "1->2 trigger 1 size 8 send_done_trigger 2\n"
        "2->3 id 3 trigger 2 size 1\n"
        "trigger id 1 multishot\ntrigger id 2 barrier count 1\n"
        "failure switch_type TOR switch_id 0 link_id 1\n"
    )
    assert matrix_text(parse_matrix(text)) == text
    assert parse_matrix(f"# a comment\n\n{text}") == parse_matrix(text)
    notes = matrix_graph(parse_matrix(text)).notes
    assert notes == ("failed links are left out",)


def test_flow_above_htsims_largest_is_divided() -> None:
    demand = DemandMatrix(("s0", "s1"), [[5, MAX_BYTES + 7], [0, 0]])
    lines = [
        "Nodes 2",
        "Connections 2",
        f"0->1 id 1 start 0 size {MAX_BYTES}",
        "0->1 id 2 start 0 size 7",
    ]
    assert matrix_text(demand_matrix(demand)).splitlines() == lines
    send = Node(1, "send", size=MAX_BYTES + 7, peer=1)
    answer = Node(2, "send", after=(1,), size=1, peer=0)
    graph = ExecutionGraph(
        {
            0: (send, Node(2, "receive", size=1, peer=1)),
            1: (replace(send, kind="receive", peer=0), answer),
        }
    )
    matrix, lost = graph_matrix(graph)
    assert matrix.triggers == (Trigger(1, "barrier", 2),)
    assert [one.receive_done for one in matrix.connections] == [1, 1, None]
    assert lost == ()


def ring(compute_s: float) -> ExecutionGraph:
    """Return 0 -> 1 -> 0, with computation before each send."""
    first = Node(1, "compute", duration_s=3e-6)
    return ExecutionGraph(
        {
            0: (
                first,
                Node(2, "send", after=(1,), size=10, peer=1),
                Node(3, "receive", size=20, peer=1),
            ),
            1: (
                Node(1, "receive", size=10, peer=0, stream=0),
                Node(2, "compute", duration_s=compute_s, stream=0),
                Node(3, "send", size=20, peer=0, stream=0),
            ),
        }
    )


@pytest.mark.parametrize(
    ("compute_s", "lost"), [(0.0, ()), (1e-6, ("computation between flows takes no time",))]
)
def test_computation_becomes_a_start_or_is_lost(compute_s: float, lost: tuple[str, ...]) -> None:
    matrix, losses = graph_matrix(ring(compute_s))
    assert losses == lost
    assert matrix.connections == (
        Connection(0, 1, 10, 1, start_ps=3_000_000, receive_done=1),
        Connection(1, 0, 20, 2, trigger=1),
    )


def test_triggers_of_other_nodes_become_empty_messages() -> None:
    """Flow 2->3 waits for both 0->1 and 1->0, on none of whose nodes it starts."""
    text = (
        "Nodes 4\nConnections 3\nTriggers 1\n0->1 size 9 recv_done_trigger 1\n"
        "1->0 size 9 recv_done_trigger 1\n2->3 trigger 1 size 5\ntrigger id 1 barrier count 2\n"
    )
    graph = matrix_graph(parse_matrix(text))
    empty = [
        (rank, node.peer)
        for rank, nodes in graph.ranks.items()
        for node in nodes
        if node.kind == "send" and not node.size
    ]
    assert empty == [(0, 1), (1, 2)]
    assert not list(graph.faults())
    flow = next(node for node in graph.ranks[2] if node.size == 5)
    assert [n.size for n in graph.ranks[2] if n.number in flow.after] == [0]


def flows_after(*waits: tuple[int, ...]) -> ExecutionGraph:
    """Return sends 1, 2, ... of rank 0 to rank 1 that wait for others of them."""
    sends = tuple(
        Node(n, "send", after=after, size=n, peer=1) for n, after in enumerate(waits, start=1)
    )
    receives = tuple(replace(one, kind="receive", after=(), peer=0) for one in sends)
    return ExecutionGraph({0: sends, 1: receives})


def test_waits_that_follow_from_others_need_no_trigger() -> None:
    """The third flow waits for the first too, but the second already does."""
    matrix, _ = graph_matrix(flows_after((), (1,), (1, 2)))
    assert [(one.trigger, one.send_done) for one in matrix.connections] == [
        (None, 1), (1, 2), (2, None),
    ]  # fmt: skip


def test_waits_that_triggers_cannot_express_are_refused() -> None:
    """The third flow waits for the first, the fourth for the first and the second."""
    with pytest.raises(SpecError, match=r"rank 0, operation 1: .* can't express .* use GOAL"):
        graph_matrix(flows_after((), (), (1,), (1, 2)))


@pytest.mark.parametrize("kind", ["all_to_all", "all_reduce", "all_gather", "reduce_scatter"])
def test_successive_collectives_are_written_as_flows(kind: CollectiveKind, tmp_path: Path) -> None:
    """The flows of one collective wait for those of the one before."""
    nodes = tuple(
        Node(n, "collective", after=(n - 1,) * (n > 0), size=4096, collective=kind)
        for n in range(3)
    )
    graph = ExecutionGraph(dict.fromkeys(range(4), nodes))
    path = tmp_path / "flows.cm"
    ConnectionMatrixWriter().write(graph, path)
    read = ConnectionMatrixReader().read(path)
    assert np.array_equal(message_bytes(read), pair_bytes(graph))
    starts = [one.trigger is None for one in parse_matrix(path.read_text()).connections]
    assert sum(starts) < len(starts) / 2


def test_matrix_has_no_collectives() -> None:
    collective = Node(4, "collective", collective="barrier")
    with pytest.raises(SpecError, match="rank 0, operation 4: a connection matrix has no barrier"):
        graph_matrix(ExecutionGraph({0: (collective,)}))


def test_file_is_recognised_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "flows"
    ConnectionMatrixWriter().write(ring(0.0), path)
    assert trace_reader(path).name == "cm"
    assert message_bytes(ConnectionMatrixReader().read(path)).tolist() == [[0, 10], [20, 0]]


TWO = "Nodes 2\nConnections 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TWO, "connection matrix: 1 Connections are announced, 0 given"),
        ("Connections 0\n", "connection matrix: Nodes is missing"),
        ("Nodes 0\n", "line 1: 0 nodes are not 1 to 65536"),
        (f"{TWO}0->2 start 0 size 9\n", "line 3: there are 2 nodes only"),
        (f"{TWO}0->1 start 0 size 9999999999\n", "line 3: a size of at most 2147483647 bytes is"),
        (f"{TWO}0->1 start 0\n", "line 3: a size of at most 2147483647 bytes is needed"),
        (f"{TWO}0->1 start -4 size 2\n", "line 3: start must not be negative"),
        (f"{TWO}0->1 start 0 trigger 1 size 2\n", "line 3: start and trigger are both given"),
        (f"{TWO}0->1 start 0 start 1 size 2\n", "line 3: a word is there twice"),
        (f"{TWO}0->1 begin 0 size 2\n", "line 3: begin is not one of id, start, trigger, size,"),
        (f"{TWO}0->1  size 2\n", "line 3: '0->1  size 2' is no line of a connection matrix"),
        (f"{TWO}0->1 trigger 1 size 9\n", "connection matrix: 0->1: there is no trigger 1"),
        (
            "Nodes 2\nConnections 0\nTriggers 2\ntrigger id 1 oneshot\ntrigger id 1 oneshot\n",
            "connection matrix: two triggers have the same id",
        ),
    ],
)
def test_wrong_matrix_is_refused_in_place(text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_matrix(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        ("oneshot", "trigger 1: it waits for 1 pulls and has 2"),
        ("barrier count 3", "trigger 1: it waits for 3 pulls and has 2"),
    ],
)
def test_trigger_that_would_not_be_pulled_as_said_is_refused(trigger: str, message: str) -> None:
    text = (
        "Nodes 2\nConnections 2\nTriggers 1\n0->1 size 9 recv_done_trigger 1 send_done_trigger 1\n"
        f"1->0 trigger 1 size 5\ntrigger id 1 {trigger}\n"
    )
    with pytest.raises(TraceError, match=message):
        matrix_graph(parse_matrix(text))
