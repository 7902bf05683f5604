"""Execution graphs of messages: those of demands, and those without collectives.

Formats without collectives (GOAL, flows in CSV) hold such graphs.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError
from moefabric.runtime.atomic_file import write_whole
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.program import Program, lower
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node, NodeKind

MAX_STEPS = 4_000_000
"""Steps of a lowered graph, over all ranks."""


def demand_graph(demand: DemandMatrix) -> ExecutionGraph:
    """Return a demand as a graph of sends and receives that don't wait for each other.

    In step n of n, each rank sends to the rank n after it and receives from the rank n before it.
    The step is the tag. Pairs that owe nothing have no operation.
    """
    owed, count = whole_bytes(demand), len(demand.servers)
    ranks = {}
    for rank in range(count):
        nodes: list[Node] = []
        for step in range(1, count):
            to, source = (rank + step) % count, (rank - step) % count
            if size := owed.get((rank, to)):
                nodes.append(Node(len(nodes) + 1, "send", size=size, peer=to, tag=step))
            if size := owed.get((source, rank)):
                nodes.append(Node(len(nodes) + 1, "receive", size=size, peer=source, tag=step))
        ranks[rank] = tuple(nodes)
    return ExecutionGraph(ranks)


def whole_bytes(demand: DemandMatrix) -> Mapping[tuple[int, int], int]:
    """Return the whole bytes, above 0, that each pair of servers owes, by their positions."""
    index = demand.index
    owed = {(index[a], index[b]): round(size) for a, b, size in demand.pairs()}
    return {pair: size for pair, size in owed.items() if size}


def lowered(graph: ExecutionGraph) -> ExecutionGraph:
    """Return a graph with every collective as messages, in the steps of its default schedule.

    A graph without collectives is returned as it is.

    Raises:
        SpecError: If the graph is impossible, or would have too many steps.
    """
    if not any(node.kind == "collective" for nodes in graph.ranks.values() for node in nodes):
        return graph
    program = lower(graph, DEFAULTS)
    steps = sum(len(rank_steps) for call in program.calls for rank_steps in call.schedule.steps)
    if steps > MAX_STEPS:
        message = f"its collectives have {steps} steps, more than {MAX_STEPS}: fold it (--ranks)"
        raise SpecError([(graph.name or "graph", message)])
    ranks = {rank: tuple(_step_nodes(program, rank)) for rank in range(program.ranks)}
    calls = [call for call in program.calls if call.schedule.name != "message"]
    used = sorted({f"{call.call.kind}: {call.schedule.name}" for call in calls})
    notes = (*program.notes, f"Collectives are lowered to messages ({', '.join(used)}).")
    return ExecutionGraph(ranks, name=graph.name, notes=notes)


def _step_nodes(program: Program, rank: int) -> Iterator[Node]:
    operations = program.operations[rank]
    for step in program.steps(rank):
        name = f"{operations[step.operation].name} {step.phase}".strip()
        if step.kind in {"compute", "copy"}:
            yield Node(step.number, "compute", name, step.after, duration_s=step.duration_s)
            continue
        assert step.extent is not None
        kind: NodeKind = "send" if step.kind == "send" else "receive"
        size, tag = step.extent.size, step.transfer
        yield Node(step.number, kind, name, step.after, size=size, peer=step.peer, tag=tag)


class FlowsCsvWriter:
    """Writes the messages of a graph as CSV: `source,target,bytes,tag,number,after,name`.

    `number` and `after` are those of the source's operations. Collectives are lowered first.
    """

    name = "csv"

    def write(self, graph: ExecutionGraph, path: Path) -> None:
        """Write the flows of a graph."""
        rows = ["source,target,bytes,tag,number,after,name"]
        for rank, nodes in sorted(lowered(graph).ranks.items()):
            for node in nodes:
                if node.kind == "send":
                    name = '"' + node.name.replace('"', '""') + '"' if node.name else ""
                    after = " ".join(map(str, node.after))
                    numbers = f"{node.size},{node.tag},{node.number}"
                    rows.append(f"{rank},{node.peer},{numbers},{after},{name}")
        write_whole(path, "\n".join(rows) + "\n")
