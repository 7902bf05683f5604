"""Kernels in the layout of DeepSeek's profile. The file is synthetic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from moefabric.core.errors import TraceError
from moefabric.traces.deepseek_kernels import DeepseekKernelsReader
from moefabric.traces.formats import trace_reader
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node
from moefabric.workload.graphs.timeline import length_s

HEAD = "kernel,start_us,dur_us,stream\n"
FILE = f"""{HEAD}get_dispatch_layout,100,50,7
notify_dispatch,150,1000,7
"internode::dispatch<false, 2, false",1160,4000,7
cached_notify,5160,20,7
internode::combine,5200,6000,7
"""


def test_kernels_become_the_graph_of_all_ranks(tmp_path: Path) -> None:
    """2 nodes have 16 ranks; 4,096 tokens go to 8 experts in 7,392 bytes and return in 14,336."""
    path = tmp_path / "kernels.csv"
    path.write_text(FILE)
    assert trace_reader(path).name == "deepseek-kernels"
    graph = DeepseekKernelsReader().read(path)
    assert isinstance(graph, ExecutionGraph)
    assert not list(graph.faults())
    assert set(graph.ranks) == set(range(16))
    kinds = Counter(node.collective or node.kind for node in graph.ranks[9])
    assert kinds == {"compute": 3, "barrier": 2, "all_to_all": 2}
    assert graph.ranks[9][2].duration_s == pytest.approx(10e-6)
    assert graph.ranks[9][3] == Node(
        3, "collective", "internode::dispatch<false, 2, false", size=4096 * 8 * 7392,
        collective="all_to_all", stream=0,
    )  # fmt: skip
    assert graph.ranks[9][-1].size == 4096 * 8 * 14336
    assert length_s(graph) == pytest.approx(80e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEAD}combine,1,2\n", "line 2: kernel, start, duration and stream are needed"),
        (f"{HEAD}combine,now,2,3\n", "line 2: kernel, start, duration and stream are needed"),
        (f"{HEAD}combine,-1,2,3\n", "line 2: start and duration must not be negative"),
        (f"{HEAD}combine,nan,2,3\n", "line 2: start and duration must not be negative"),
        (f"{HEAD}x::combine,1,2,3\n", "one number of nodes is needed in dispatch<...>, not none"),
        (f'{HEAD}"x::dispatch<0, 999, 1>",1,2,3\n', "999 nodes are not 1 to 256"),
        (
            f'{HEAD}"x::dispatch<0, 9, 1>",1,2,3\n"x::dispatch<0, 8, 1>",1,2,3\n',
            "one number of nodes is needed in dispatch<...>, not 8, 9",
        ),
    ],
)
def test_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        DeepseekKernelsReader().read(path)
    assert message in str(caught.value)


def test_kernels_of_streams_that_overlap_leave_no_gap(tmp_path: Path) -> None:
    """The second kernel ends within the first, 60 us before the third starts."""
    path = tmp_path / "kernels.csv"
    kernels = '"x::dispatch<false, 1, true",0,100,1\nlayout,10,20,2\nlayout,160,5,2\n'
    path.write_text(HEAD + kernels)
    nodes = DeepseekKernelsReader().read(path).ranks[0]
    gaps = [node.duration_s for node in nodes if node.name == "gap"]
    assert gaps == [pytest.approx(60e-6)]
