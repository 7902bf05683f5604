"""Random execution graphs that have no faults, and ones of computation and messages that run."""

from typing import Any

from hypothesis import strategies as st

from moefabric.workload.graphs.execution_graph import COLLECTIVES, WORLD, ExecutionGraph, Node

SECONDS = st.floats(0, 1e3, allow_subnormal=False)
BYTES = st.integers(0, 1 << 40)
NAMES = st.text("abcdefghij :-_/%", max_size=12).map(lambda text: " ".join(text.split()))


@st.composite
def execution_graphs(draw: st.DrawFn) -> ExecutionGraph:
    """Draw a graph of up to four ranks with computation, collectives and messages."""
    ranks = draw(st.integers(1, 4))
    pair = draw(st.permutations(range(ranks)))[: draw(st.integers(1, ranks))]
    groups = {WORLD: tuple(range(ranks)), draw(st.sampled_from(["7", "ep", "0"])): tuple(pair)}
    operations: dict[int, list[Node]] = {rank: [] for rank in range(ranks)}
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["compute", "collective", "message"]))
        if kind == "compute":
            rank = draw(st.sampled_from(range(ranks)))
            _add(draw, operations, rank, kind="compute", duration_s=draw(SECONDS))
        elif kind == "collective":
            _add_collective(draw, operations, groups)
        else:
            _add_message(draw, operations)
    named = draw(st.sampled_from(["", "a trace"]))
    notes = tuple(draw(st.lists(st.sampled_from(["folded", "assumed"]), unique=True)))
    return ExecutionGraph({r: tuple(of) for r, of in operations.items()}, groups, named, notes)


def _add_collective(
    draw: st.DrawFn, operations: dict[int, list[Node]], groups: dict[str, tuple[int, ...]]
) -> None:
    group = draw(st.sampled_from(sorted(groups)))
    collective = draw(st.sampled_from(COLLECTIVES))
    root = draw(st.sampled_from(groups[group]))
    uneven = collective == "all_to_all" and draw(st.booleans())
    size = 0 if collective == "barrier" else draw(BYTES)
    for rank in groups[group]:
        splits = tuple(draw(BYTES) for _ in groups[group]) if uneven else ()
        _add(
            draw, operations, rank, kind="collective", collective=collective, group=group,
            root=root, splits=splits, size=sum(splits) if uneven else size,
        )  # fmt: skip


def _add_message(draw: st.DrawFn, operations: dict[int, list[Node]]) -> None:
    ends = st.sampled_from(sorted(operations))
    source, target = draw(ends), draw(ends)
    size, tag = draw(BYTES), draw(st.integers(0, 3))
    _add(draw, operations, source, kind="send", peer=target, size=size, tag=tag)
    _add(draw, operations, target, kind="receive", peer=source, size=size, tag=tag)


def _add(draw: st.DrawFn, operations: dict[int, list[Node]], rank: int, **fields: object) -> None:
    earlier = [node.number for node in operations[rank]]
    after = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=2)) if earlier else []
    number = draw(st.integers(0, 3)) + (earlier[-1] + 1 if earlier else 0)
    stream = draw(st.integers(-1, 2))
    name = draw(st.sampled_from(["", "gemm", "ncclDevKernel_SendRecv", "é"]))
    operations[rank].append(
        Node(number, name=name, after=tuple(after), stream=stream, **fields)  # type: ignore[arg-type]
    )


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
