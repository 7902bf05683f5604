"""htsim's connection matrices (`.cm`): flows with sizes, starts and triggers.

    Nodes 8
    Connections 2
    Triggers 1
    0->1 id 1 start 0 size 524288 recv_done_trigger 1
    1->0 id 2 trigger 1 size 524288
    trigger id 1 oneshot

`htsim_ndp -tm FILE -nodes 8 -linkspeed 100000 -mtu 9000 -q 100 -strat perm -cwnd 50` simulates
100 Gb/s; `start` is in picoseconds, and a size is at most 2,147,483,647 bytes. A trigger starts
flows once a flow has been sent or received (`oneshot`), once several have (`barrier count N`), or
one flow each time (`multishot`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, Literal, get_args

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError, TraceError
from moefabric.runtime.atomic_file import write_whole
from moefabric.traces.files import read_text
from moefabric.traces.formats import checked_graph
from moefabric.traces.messages import lowered, whole_bytes
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node

MAX_BYTES: Final = 2**31 - 1
"""Largest flow of htsim, whose sizes are 32-bit integers."""
MAX_CONNECTIONS: Final = 2_000_000
MAX_NODES: Final = 1 << 16
_PS: Final = 10**12
"""Picoseconds of a second."""

TriggerKind = Literal["oneshot", "multishot", "barrier"]

_COUNT = re.compile(r"(Nodes|Connections|Triggers|Failures) (\d{1,9})")
_FLOW = re.compile(r"(\d{1,9})->(\d{1,9})((?: (?:[a-z_]+) -?\d{1,18})*)")
_TRIGGER = re.compile(r"trigger id (\d{1,9}) (oneshot|multishot|barrier)(?: count (\d{1,9}))?")
_FAILURE = re.compile(r"failure \S.*")
_KEYS: Final = {
    "id": "number",
    "start": "start_ps",
    "trigger": "trigger",
    "size": "size",
    "send_done_trigger": "send_done",
    "recv_done_trigger": "receive_done",
    "prio": "priority",
}
"""Words of a flow's line, in the order in which they are written, and what they mean."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A flow.

    Attributes:
        source: Node that sends.
        target: Node that receives.
        size: Bytes.
        number: Number that htsim reports it by.
        start_ps: Picoseconds until it starts; None if a trigger starts it.
        trigger: Trigger that starts it.
        send_done: Trigger that it pulls once it is sent.
        receive_done: Trigger that it pulls once it is received.
        priority: Priority, if any.
    """

    source: int
    target: int
    size: int
    number: int | None = None
    start_ps: int | None = None
    trigger: int | None = None
    send_done: int | None = None
    receive_done: int | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger starts flows. `count` is the number of pulls that a `barrier` waits for."""

    number: int
    kind: TriggerKind
    count: int = 1


@dataclass(frozen=True)
class ConnectionMatrix:
    """The content of a file; `failures` are its lines on failed links."""

    nodes: int
    connections: tuple[Connection, ...]
    triggers: tuple[Trigger, ...] = ()
    failures: tuple[str, ...] = ()


def matrix_text(matrix: ConnectionMatrix) -> str:
    """Return the text of a connection matrix."""
    return "\n".join(_lines(matrix)) + "\n"


def _lines(matrix: ConnectionMatrix) -> Iterator[str]:
    yield f"Nodes {matrix.nodes}"
    yield f"Connections {len(matrix.connections)}"
    if matrix.triggers:
        yield f"Triggers {len(matrix.triggers)}"
    if matrix.failures:
        yield f"Failures {len(matrix.failures)}"
    for one in matrix.connections:
        values = ((word, getattr(one, key)) for word, key in _KEYS.items())
        words = "".join(f" {word} {value}" for word, value in values if value is not None)
        yield f"{one.source}->{one.target}{words}"
    for trigger in matrix.triggers:
        count = f" count {trigger.count}" if trigger.kind == "barrier" else ""
        yield f"trigger id {trigger.number} {trigger.kind}{count}"
    yield from matrix.failures


def demand_matrix(demand: DemandMatrix, nodes: int | None = None) -> ConnectionMatrix:
    """Return the flows of a demand, which all start at once.

    Pairs that owe more than htsim's largest flow have several flows.

    Args:
        demand: Bytes between servers.
        nodes: Number of nodes; by default that of the servers.
    """
    flows = [(a, b, part) for (a, b), size in whole_bytes(demand).items() for part in parts(size)]
    connections = tuple(
        Connection(a, b, size, number=number, start_ps=0)
        for number, (a, b, size) in enumerate(flows, start=1)
    )
    return ConnectionMatrix(nodes or len(demand.servers), connections)


def parts(size: int) -> list[int]:
    """Return the sizes of the flows that a message becomes."""
    full, rest = divmod(size, MAX_BYTES)
    return [MAX_BYTES] * full + [rest] * bool(rest)


def parse_matrix(text: str, source: object = "connection matrix") -> ConnectionMatrix:
    """Return the content of a connection matrix.

    Args:
        text: The text of the file.
        source: Name of the file, for errors.

    Raises:
        TraceError: If a line is not understood, or counts, nodes or triggers are wrong.
    """
    counts: dict[str, int] = {}
    connections: list[Connection] = []
    triggers: list[Trigger] = []
    failures: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        place = f"line {number}"
        if not words or words.startswith("#"):
            continue
        if match := _COUNT.fullmatch(words):
            counts[match[1]] = int(match[2])
            if match[1] == "Nodes" and not 0 < counts["Nodes"] <= MAX_NODES:
                raise TraceError(source, place, f"{match[2]} nodes are not 1 to {MAX_NODES}")
        elif match := _FLOW.fullmatch(words):
            connections.append(_connection(match, counts.get("Nodes", 0), source, place))
            if len(connections) > MAX_CONNECTIONS:
                raise TraceError(source, place, f"more than {MAX_CONNECTIONS} flows can't be read")
        elif match := _TRIGGER.fullmatch(words):
            kind = next(kind for kind in get_args(TriggerKind) if kind == match[2])
            triggers.append(Trigger(int(match[1]), kind, int(match[3] or 1)))
        elif _FAILURE.fullmatch(words):
            failures.append(words)
        else:
            raise TraceError(source, place, f"{words[:80]!r} is no line of a connection matrix")
    found: dict[str, int] = {
        "Connections": len(connections), "Triggers": len(triggers), "Failures": len(failures),
    }  # fmt: skip
    faults = [] if "Nodes" in counts else ["Nodes is missing"]
    for name, given in found.items():
        if counts.get(name, 0) != given:
            faults.append(f"{counts.get(name, 'no')} {name} are announced, {given} given")
    faults += _trigger_faults(connections, triggers)
    if faults:
        raise TraceError(source, "", faults[0])
    return ConnectionMatrix(counts["Nodes"], tuple(connections), tuple(triggers), tuple(failures))


def _connection(match: re.Match[str], nodes: int, source: object, place: str) -> Connection:
    words = match[3].split()
    values = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    if unknown := sorted(set(values) - set(_KEYS)):
        raise TraceError(source, place, f"{unknown[0]} is not one of {', '.join(_KEYS)}")
    if len(values) * 2 < len(words):
        raise TraceError(source, place, "a word is there twice")
    if negative := [word for word, value in values.items() if value < 0 and word != "prio"]:
        raise TraceError(source, place, f"{negative[0]} must not be negative")
    sender, target = int(match[1]), int(match[2])
    if max(sender, target) >= nodes:
        raise TraceError(source, place, f"there are {nodes} nodes only")
    if "size" not in values or values["size"] > MAX_BYTES:
        raise TraceError(source, place, f"a size of at most {MAX_BYTES} bytes is needed")
    if "start" in values and "trigger" in values:
        raise TraceError(source, place, "start and trigger are both given, one of them is needed")
    if "trigger" not in values:
        values.setdefault("start", 0)
    return Connection(sender, target, **{_KEYS[word]: value for word, value in values.items()})


def _trigger_faults(
    connections: Sequence[Connection], triggers: Sequence[Trigger]
) -> Iterator[str]:
    known = {trigger.number for trigger in triggers}
    if len(known) < len(triggers):
        yield "two triggers have the same id"
    for one in connections:
        for number in (one.trigger, one.send_done, one.receive_done):
            if number is not None and number not in known:
                yield f"{one.source}->{one.target}: there is no trigger {number}"
                return


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
        self._tags: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._free = 4 * len(matrix.connections)
        self.notes: dict[str, None] = {}

    def build(self) -> dict[int, tuple[Node, ...]]:
        waits = self._waits()
        if self._matrix.failures:
            self.notes["failed links are left out"] = None
        for index, one in enumerate(self._matrix.connections):
            before: tuple[int, ...] = waits.get(index, ())
            if one.start_ps:  # and then no trigger
                start = Node(4 * index, "compute", duration_s=one.start_ps / _PS)
                self._ranks[one.source].append(start)
                before = (start.number,)
            self._message(one, (4 * index + 1, 4 * index + 2), before)
        return {rank: tuple(nodes) for rank, nodes in self._ranks.items()}

    def _message(self, one: Connection, numbers: tuple[int, int], after: tuple[int, ...]) -> None:
        tag, size = self._tags[one.source, one.target], one.size
        self._tags[one.source, one.target] += 1
        send = Node(numbers[0], "send", after=after, size=size, peer=one.target, tag=tag)
        self._ranks[one.source].append(send)
        receive = Node(numbers[1], "receive", size=size, peer=one.source, tag=tag)
        self._ranks[one.target].append(receive)

    def _waits(self) -> dict[int, tuple[int, ...]]:
        """Return the operations of its source that each triggered flow waits for."""
        pulls: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        started: defaultdict[int, list[int]] = defaultdict(list)
        for index, one in enumerate(self._matrix.connections):
            if one.send_done is not None:
                pulls[one.send_done].append((one.source, 4 * index + 1))
            if one.receive_done is not None:
                pulls[one.receive_done].append((one.target, 4 * index + 2))
            if one.trigger is not None:
                started[one.trigger].append(index)
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
        self, events: Sequence[tuple[int, int]], flows: Sequence[int]
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
            own = tuple(number for one, number in events if one == rank)
            gathered.append(self._tell(rank, centre, own))
        heard: dict[int, tuple[int, ...]] = {
            rank: (self._tell(centre, rank, tuple(gathered)),)
            for rank in sorted(sources - {centre})
        }
        heard[centre] = tuple(gathered)
        return {index: heard[self._matrix.connections[index].source] for index in flows}

    def _tell(self, source: int, target: int, after: tuple[int, ...]) -> int:
        """Add a message of 0 bytes, and return the number of its receive."""
        self._free += 2
        numbers = self._free - 2, self._free - 1
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

    events: frozenset[tuple[int, int]] = frozenset()
    start_s: float = 0.0


@dataclass
class _MatrixBuilder:
    graph: ExecutionGraph
    posted: bool
    """Whether receives wait for nothing."""
    nodes: dict[tuple[int, int], Node] = field(init=False)
    partner: dict[tuple[int, int], tuple[int, int]] = field(init=False)
    """The send of each receive, and the receive of each send."""
    lost: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {
            (rank, node.number): node for rank, nodes in self.graph.ranks.items() for node in nodes
        }
        waiting: defaultdict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for key, node in self.nodes.items():
            if node.kind == "collective":
                message = f"a connection matrix has no {node.collective}: lower collectives first"
                raise SpecError([(f"rank {key[0]}, operation {key[1]}", message)])
            if node.kind == "receive":
                waiting[node.peer, key[0], node.tag].append(key)
        self.partner = {}
        for key, node in self.nodes.items():
            if node.kind == "send":
                receive = waiting[key[0], node.peer, node.tag].pop(0)
                self.partner |= {key: receive, receive: key}

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
        pulls = Counter(end for one in connections for end in (one.send_done, one.receive_done))
        counted = tuple(
            Trigger(number, "barrier" if pulls[number] > 1 else "oneshot", pulls[number])
            for number in triggers.values()
        )
        matrix = ConnectionMatrix(len(self.graph.ranks), tuple(connections), counted)
        return matrix, tuple(self.lost)

    def _triggers(
        self, sets: Iterable[frozenset[tuple[int, int]]]
    ) -> tuple[dict[frozenset[tuple[int, int]], int], dict[tuple[int, int], int]]:
        """Return a trigger for each set of events, and the trigger that each event pulls."""
        triggers: dict[frozenset[tuple[int, int]], int] = {}
        pulled: dict[tuple[int, int], int] = {}
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

    def _all_waits(self) -> dict[tuple[int, int], _Waits]:
        own = {
            (rank, number): [(rank, one) for one in waits]
            for rank in self.graph.ranks
            for number, waits in self.graph.dependencies(rank).items()
        }
        before = {
            key: [*own[key], *([self.partner[key]] if node.kind == "receive" else [])]
            for key, node in self.nodes.items()
        }
        known: dict[tuple[int, int], _Waits] = {}
        try:
            for key in TopologicalSorter(before).static_order():
                known[key] = self._waits_of(key, own[key], known)
        except CycleError as error:
            rank, number = error.args[1][0]
            raise SpecError([(f"rank {rank}", f"operation {number} waits for itself")]) from error
        return known

    def _waits_of(
        self,
        key: tuple[int, int],
        before: Sequence[tuple[int, int]],
        known: dict[tuple[int, int], _Waits],
    ) -> _Waits:
        """Return the events that an operation waits for, from those of the operations before it."""
        events: set[tuple[int, int]] = set()
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
