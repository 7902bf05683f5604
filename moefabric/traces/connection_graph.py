"""Execution graphs of htsim's connection matrices, and back."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import count
from pathlib import Path
from typing import Final

from moefabric.core.errors import SpecError, TraceError
from moefabric.runtime.atomic_file import write_whole
from moefabric.traces.connection_matrix import (
    Connection,
    ConnectionMatrix,
    Trigger,
    matrix_text,
    parse_matrix,
    parts,
)
from moefabric.traces.files import read_text
from moefabric.traces.formats import checked_graph
from moefabric.traces.messages import lowered
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node, Place

_PS: Final = 10**12
"""Picoseconds of a second."""


def matrix_graph(
    matrix: ConnectionMatrix, name: str = "", source: object = "connection matrix"
) -> ExecutionGraph:
    """Return the execution graph of a connection matrix.

    A flow is a send and a receive; until its start, its source computes. A trigger that a flow of
    another node pulls becomes a message of 0 bytes.

    Raises:
        TraceError: If it isn't known what a trigger waits for, or flows wait for each other.
    """
    builder = _GraphBuilder(matrix, source)
    ranks = builder.build()
    return checked_graph(ExecutionGraph(ranks, name=name, notes=tuple(builder.notes)), source)


class _GraphBuilder:
    def __init__(self, matrix: ConnectionMatrix, source: object) -> None:
        self._matrix, self._source = matrix, source
        self._ranks: dict[int, list[Node]] = {rank: [] for rank in range(matrix.nodes)}
        self._tags: defaultdict[tuple[int, int], Iterator[int]] = defaultdict(count)
        self._free = count(4 * len(matrix.connections))
        self.notes: dict[str, None] = {}

    def build(self) -> dict[int, tuple[Node, ...]]:
        waits = self._waits()
        if self._matrix.failures:
            self.notes["failed links are left out"] = None
        for index, flow in enumerate(self._matrix.connections):
            before: tuple[int, ...] = waits.get(index, ())
            if flow.start_ps:  # and then no trigger
                start = Node(4 * index, "compute", duration_s=flow.start_ps / _PS)
                self._ranks[flow.source].append(start)
                before = (start.number,)
            self._message(flow, (4 * index + 1, 4 * index + 2), before)
        return {rank: tuple(nodes) for rank, nodes in self._ranks.items()}

    def _message(self, flow: Connection, numbers: tuple[int, int], after: tuple[int, ...]) -> None:
        tag, size = next(self._tags[flow.source, flow.target]), flow.size
        send = Node(numbers[0], "send", after=after, size=size, peer=flow.target, tag=tag)
        self._ranks[flow.source].append(send)
        receive = Node(numbers[1], "receive", size=size, peer=flow.source, tag=tag)
        self._ranks[flow.target].append(receive)

    def _waits(self) -> dict[int, tuple[int, ...]]:
        """Return the operations of its source that each triggered flow waits for."""
        pulls: defaultdict[int, list[Place]] = defaultdict(list)
        started: defaultdict[int, list[int]] = defaultdict(list)
        for index, flow in enumerate(self._matrix.connections):
            if flow.send_done is not None:
                pulls[flow.send_done].append((flow.source, 4 * index + 1))
            if flow.receive_done is not None:
                pulls[flow.receive_done].append((flow.target, 4 * index + 2))
            if flow.trigger is not None:
                started[flow.trigger].append(index)
        waits: dict[int, tuple[int, ...]] = {}
        for trigger in self._matrix.triggers:
            events, flows = pulls[trigger.number], started[trigger.number]
            if not flows:
                continue
            if trigger.kind == "multishot":
                if len(events) < len(flows):
                    raise self._error(trigger, f"starts {len(flows)} flows in {len(events)} pulls")
                if len(events) > 1:
                    self.notes["multishot triggers are pulled in the order of the file"] = None
                for event, index in zip(events, flows, strict=False):
                    waits |= self._waits_of([event], [index])
                continue
            needed = trigger.count if trigger.kind == "barrier" else 1
            if len(events) != needed:
                raise self._error(trigger, f"waits for {needed} pulls and has {len(events)}")
            waits |= self._waits_of(events, flows)
        return waits

    def _waits_of(
        self, events: Sequence[Place], flows: Sequence[int]
    ) -> dict[int, tuple[int, ...]]:
        """Return the events that flows wait for: those given, if all are of the flow's source.

        Events elsewhere are collected by the rank of the first one, which tells the sources.
        """
        ranks = {rank for rank, _ in events}
        sources = {self._matrix.connections[index].source for index in flows}
        if len(ranks) == 1 and ranks == sources:
            return dict.fromkeys(flows, tuple(number for _, number in events))
        centre = events[0][0]
        gathered = [number for rank, number in events if rank == centre]
        for rank in sorted(ranks - {centre}):
            numbers = tuple(number for event_rank, number in events if event_rank == rank)
            gathered.append(self._tell(rank, centre, numbers))
        heard: dict[int, tuple[int, ...]] = {
            rank: (self._tell(centre, rank, tuple(gathered)),)
            for rank in sorted(sources - {centre})
        }
        heard[centre] = tuple(gathered)
        return {index: heard[self._matrix.connections[index].source] for index in flows}

    def _tell(self, source: int, target: int, after: tuple[int, ...]) -> int:
        """Add a message of 0 bytes, and return the number of its receive."""
        numbers = next(self._free), next(self._free)
        self._message(Connection(source, target, 0), numbers, after)
        return numbers[1]

    def _error(self, trigger: Trigger, reason: str) -> TraceError:
        return TraceError(self._source, f"trigger {trigger.number}", f"it {reason}")


def graph_matrix(graph: ExecutionGraph) -> tuple[ConnectionMatrix, tuple[str, ...]]:
    """Return the connection matrix of a graph, and lines that name its losses.

    Flows are in the order of the numbers of their sends. Computation before the first messages
    becomes their start. Messages of 0 bytes are waits only. If triggers can't express what flows
    wait for, flows no longer wait for what a receive before them waits for, as if all receives were
    posted at the start.

    Raises:
        SpecError: If the graph has collectives, or waits that triggers can't express even so: an
            operation pulls one trigger only.
    """
    try:
        return _MatrixBuilder(graph, posted=False).build()
    except _InexpressibleError:
        return _MatrixBuilder(graph, posted=True).build()


class _InexpressibleError(SpecError):
    """Flows wait for what triggers can't express."""


@dataclass(frozen=True, slots=True)
class _Waits:
    """The ends of flows that an operation waits for, or a time if it waits for none."""

    events: frozenset[Place] = frozenset()
    start_s: float = 0.0


@dataclass
class _MatrixBuilder:
    graph: ExecutionGraph
    posted: bool
    """Whether receives wait for nothing."""
    nodes: dict[Place, Node] = field(init=False)
    partner: dict[Place, Place] = field(init=False)
    """The send of each receive, and the receive of each send."""
    lost: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {
            (rank, node.number): node for rank, nodes in self.graph.ranks.items() for node in nodes
        }
        for key, node in self.nodes.items():
            if node.kind == "collective":
                message = f"a connection matrix has no {node.collective}: lower collectives first"
                raise SpecError([(f"rank {key[0]}, operation {key[1]}", message)])
        messages = (members for members in self.graph.meetings() if len(members) == 2)
        self.partner = {}
        for (sender, send), (receiver, receive) in messages:
            ends = (sender, send.number), (receiver, receive.number)
            self.partner |= zip(ends, reversed(ends), strict=True)

    def build(self) -> tuple[ConnectionMatrix, tuple[str, ...]]:
        waits = self._all_waits()
        sends = sorted(
            (key for key, node in self.nodes.items() if node.kind == "send" and node.size),
            key=lambda key: (key[1], key[0]),
        )
        triggers, pulled = self._triggers(waits[key].events for key in sends)
        connections: list[Connection] = []
        for key in sends:
            node, wait = self.nodes[key], waits[key]
            trigger = triggers.get(wait.events)
            start_ps = None if wait.events else round(wait.start_s * _PS)
            ends = pulled.get(key), pulled.get(self.partner[key])
            for size in parts(node.size):
                number = len(connections) + 1
                flow = Connection(key[0], node.peer, size, number, start_ps, trigger, *ends)
                connections.append(flow)
        pulls = Counter(end for flow in connections for end in (flow.send_done, flow.receive_done))
        counted = tuple(
            Trigger(number, "barrier" if pulls[number] > 1 else "oneshot", pulls[number])
            for number in triggers.values()
        )
        matrix = ConnectionMatrix(len(self.graph.ranks), tuple(connections), counted)
        return matrix, tuple(self.lost)

    def _triggers(
        self, sets: Iterable[frozenset[Place]]
    ) -> tuple[dict[frozenset[Place], int], dict[Place, int]]:
        """Return a trigger for each set of events, and the trigger that each event pulls."""
        triggers: dict[frozenset[Place], int] = {}
        pulled: dict[Place, int] = {}
        for events in sets:
            if not events or events in triggers:
                continue
            triggers[events] = len(triggers) + 1
            for event in sorted(events):
                if event in pulled:
                    rank, number = event
                    message = (
                        "a connection matrix can't express which flows wait for it: they wait for "
                        "different other operations too; use GOAL"
                    )
                    raise _InexpressibleError([(f"rank {rank}, operation {number}", message)])
                pulled[event] = triggers[events]
        return triggers, pulled

    def _all_waits(self) -> dict[Place, _Waits]:
        dependencies = {
            (rank, number): [(rank, wait) for wait in waits]
            for rank in self.graph.ranks
            for number, waits in self.graph.dependencies(rank).items()
        }
        before = {
            key: [*dependencies[key], *([self.partner[key]] if node.kind == "receive" else [])]
            for key, node in self.nodes.items()
        }
        known: dict[Place, _Waits] = {}
        try:
            for key in TopologicalSorter(before).static_order():
                known[key] = self._waits_of(key, dependencies[key], known)
        except CycleError as error:
            rank, number = error.args[1][0]
            raise SpecError([(f"rank {rank}", f"operation {number} waits for itself")]) from error
        return known

    def _waits_of(self, key: Place, before: Sequence[Place], known: dict[Place, _Waits]) -> _Waits:
        """Return the events that an operation waits for, from those of the operations before it."""
        events: set[Place] = set()
        start_s = 0.0
        for one in before:
            node = self.nodes[one]
            message = node.kind in {"send", "receive"} and node.size > 0
            if message:
                events.add(one)
            if message and node.kind == "receive" and self.posted:
                self.lost["receives wait for nothing but their flow"] = None
            elif not message or node.kind == "receive":
                events |= known[one].events
                start_s = max(start_s, known[one].start_s + node.duration_s)
        if self.nodes[key].kind == "receive" and not self.nodes[key].size:
            partner_waits = known[self.partner[key]]
            events |= partner_waits.events
            start_s = max(start_s, partner_waits.start_s)
        # What another event waits for needs no wait of its own.
        for event in tuple(events):
            send = event if self.nodes[event].kind == "send" else self.partner[event]
            events -= known[send].events
        if events and start_s:
            self.lost["computation between flows takes no time"] = None
        return _Waits(frozenset(events), 0.0 if events else start_s)


class ConnectionMatrixReader:
    """Reads htsim's connection matrices."""

    name = "cm"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether the first line gives the number of nodes."""
        lines = (line.strip() for line in head.decode("utf-8", "replace").splitlines())
        first = next((line for line in lines if line and not line.startswith("#")), "")
        return re.fullmatch(r"Nodes \d+", first) is not None

    def read(self, path: Path) -> ExecutionGraph:
        """Read a connection matrix; see `matrix_graph`."""
        return matrix_graph(parse_matrix(read_text(path), path), path.stem, path)


class ConnectionMatrixWriter:
    """Writes htsim's connection matrices."""

    name = "cm"

    def write(self, graph: ExecutionGraph, path: Path) -> None:
        """Write a connection matrix, with comments on what is lost; see `graph_matrix`.

        Collectives become messages.
        """
        matrix, lost = graph_matrix(lowered(graph))
        comments = "".join(f"# {loss}\n" for loss in lost)
        write_whole(path, comments + matrix_text(matrix))
