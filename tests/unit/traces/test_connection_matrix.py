"""htsim's connection matrices of demands."""

from moefabric.core.demand import DemandMatrix
from moefabric.traces.connection_matrix import MAX_BYTES, matrix_text


def test_flow_above_htsims_largest_is_divided() -> None:
    demand = DemandMatrix(("s0", "s1"), [[5, MAX_BYTES + 7], [0, 0]])
    lines = [
        "Nodes 2",
        "Connections 2",
        f"0->1 id 1 start 0 size {MAX_BYTES}",
        "0->1 id 2 start 0 size 7",
    ]
    assert matrix_text(demand).splitlines() == lines
