"""GOAL programs: exact round trips, LogGOPSim's golden inputs, other programs' files, faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from moefabric.core.errors import SpecError, TraceError
from moefabric.traces.formats import trace_reader
from moefabric.traces.goal import GoalReader, GoalWriter, goal_graph, goal_text
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node
from tests.support.execution_graphs import message_graphs


@given(message_graphs())
def test_graph_comes_back_from_its_program(graph: ExecutionGraph) -> None:
    assert goal_graph(goal_text(graph)).ranks == graph.ranks


def test_file_is_recognised_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "job.txt"
    graph = ExecutionGraph({0: (Node(3, "compute", "expert", duration_s=1.5e-9),)}, name="job")
    GoalWriter().write(graph, path)
    assert trace_reader(path).name == "goal"
    assert GoalReader().read(path) == graph


FOREIGN = """/* made by
another program */
num_ranks 2

rank 0 { // first
a: calc 1500
b: send 9b to 1 tag 7 cpu 0 nic 1
b requires a
c: recv 4b from 1 cpu 1
d: calc 5 cpu 1
d irequires b
e: send 8b to 1
e irequires a
}
rank 1 {
x: recv 9b from 0 tag 7
send 4b to 0
recv 8b from 0
}
"""


def test_program_of_another_tool_is_read() -> None:
    """Times are nanoseconds, labels are free, and CPU 1's operations don't wait for each other."""
    graph = goal_graph(FOREIGN)
    assert graph.ranks[0] == (
        Node(1, "compute", duration_s=1.5e-6),
        Node(2, "send", after=(1,), size=9, peer=1, tag=7, stream=0),
        Node(3, "receive", size=4, peer=1),
        Node(4, "compute", after=(1,), duration_s=5e-9),
        Node(5, "send", size=8, peer=1),
    )
    assert graph.ranks[1] == (
        Node(1, "receive", size=9, peer=0, tag=7),
        Node(2, "send", size=4, peer=0),
        Node(3, "receive", size=8, peer=0),
    )
    assert graph.notes == (
        "irequires waits for all that the other operation waits for",
        "operations of a CPU that don't wait for each other overlap",
    )


@pytest.mark.parametrize(("unit", "seconds"), [("ps", 7e-12), ("us", 7e-6), ("s", 7.0)])
def test_comment_gives_the_unit_of_time(unit: str, seconds: float) -> None:
    text = f"// time unit: {unit}\nnum_ranks 1\nrank 0 {{\nl1: calc 7\n}}\n"
    assert goal_graph(text).ranks[0][0].duration_s == seconds


TWO = "num_ranks 2\nrank 0 {\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{TWO}l1: sends 9b\n}}", "GOAL: line 3: 'l1: sends 9b' is not GOAL"),
        (f"{TWO}l1: send 9b to 5 tag 1\n}}", "GOAL: line 3: there is no rank 5"),
        (f"{TWO}l1: recv 9b from -1\n}}", "GOAL: line 3: messages from any rank can't be replayed"),
        (f"{TWO}l1: recv 9b from 1 tag -1\n}}", "GOAL: line 3: messages with any tag can't be"),
        (f"{TWO}l1: calc 1\nl1: calc 2\n}}", "GOAL: line 4: label l1 is there twice"),
        (f"{TWO}l1: calc 1\nl1 requires l2\n}}", "GOAL: line 4: there is no label l2 in this rank"),
        (f"{TWO}l1: calc 1", "GOAL: the file ends within rank 0"),
        (f"{TWO}}}\nrank 0 {{\n}}", "GOAL: line 4: rank 0 has a program already"),
        (f"{TWO}rank 1 {{\n}}", "GOAL: line 3: rank 0 has no } before"),
        ("num_ranks 2\nrank 2 {\n}", "GOAL: line 2: there is no rank 2"),
        ("num_ranks 99999999\n", "GOAL: line 1: 99999999 ranks are not 1 to 65536"),
        ("", "GOAL: num_ranks is missing"),
        ("// time unit: days\nnum_ranks 1", "GOAL: line 1: days is not one of s, ms, us, ns, ps"),
        (
            f"{TWO}l1: send 9b to 1 tag 1\n}}\nrank 1 {{\n}}",
            "GOAL: messages from rank 0 to 1 with tag 1 differ: 1 sends, 0 receives",
        ),
        (
            f"{TWO}l1: calc 1\nl2: calc 1\nl1 requires l2\nl2 requires l1\n}}",
            "GOAL: rank 0, operation 1: it waits for itself, through others",
        ),
    ],
)
def test_wrong_program_is_refused_in_place(text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        goal_graph(text)
    assert str(caught.value).startswith(message)


def test_program_has_no_collectives_and_no_numbers_below_0() -> None:
    collective = Node(1, "collective", collective="barrier")
    with pytest.raises(SpecError, match="rank 0, operation 1: GOAL has no barrier"):
        goal_text(ExecutionGraph({0: (collective,)}))
    with pytest.raises(SpecError, match="no numbers or tags below 0"):
        goal_text(ExecutionGraph({0: (replace(collective, kind="compute", number=-1),)}))
