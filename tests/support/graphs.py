"""Random execution graphs of computation and messages, and small ones with collectives."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node

NAMES = st.text("abcdefghij :-_/%", max_size=12).map(lambda text: " ".join(text.split()))


@st.composite
def message_graphs(draw: st.DrawFn) -> ExecutionGraph:
    """Draw a graph that can run: each operation waits for earlier ones only, over all ranks."""
    count = draw(st.integers(2, 4))
    ranks: dict[int, list[Node]] = {rank: [] for rank in range(count)}
    numbers = dict.fromkeys(range(count), 0)

    def add(rank: int, **fields: Any) -> None:
        numbers[rank] += draw(st.integers(1, 3))
        stream = draw(st.integers(-1, 2))
        earlier = ranks[rank]
        last = next((n.number for n in reversed(earlier) if n.stream == stream >= 0), None)
        choice = [node.number for node in earlier if node.number != last]
        after = draw(st.lists(st.sampled_from(choice), unique=True, max_size=3)) if choice else []
        ranks[rank].append(
            Node(numbers[rank], after=tuple(after), stream=stream, name=draw(NAMES), **fields)
        )

    for _ in range(draw(st.integers(0, 12))):
        rank = draw(st.integers(0, count - 1))
        if draw(st.booleans()):
            add(rank, kind="compute", duration_s=draw(st.integers(0, 10**13)) / 10**12)
            continue
        peer = (rank + draw(st.integers(1, count - 1))) % count
        size, tag = draw(st.integers(0, 2**40)), draw(st.integers(0, 2))
        add(rank, kind="send", size=size, peer=peer, tag=tag)
        add(peer, kind="receive", size=size, peer=rank, tag=tag)
    return ExecutionGraph({rank: tuple(nodes) for rank, nodes in ranks.items()})
