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
one flow each time (`multishot`). `connection_graph` makes them of graphs, and graphs of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import TraceError
from moefabric.traces.messages import whole_bytes

MAX_BYTES: Final = 2**31 - 1
"""Largest flow of htsim, whose sizes are 32-bit integers."""
MAX_CONNECTIONS: Final = 2_000_000
MAX_NODES: Final = 1 << 16

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

    @property
    def counts(self) -> dict[str, int]:
        """Numbers that the first lines of the file announce."""
        return {
            "Nodes": self.nodes,
            "Connections": len(self.connections),
            "Triggers": len(self.triggers),
            "Failures": len(self.failures),
        }


def matrix_text(matrix: ConnectionMatrix) -> str:
    """Return the text of a connection matrix."""
    return "\n".join(_lines(matrix)) + "\n"


def _lines(matrix: ConnectionMatrix) -> Iterator[str]:
    for name, number in matrix.counts.items():
        if number or name in {"Nodes", "Connections"}:
            yield f"{name} {number}"
    for flow in matrix.connections:
        values = ((word, getattr(flow, key)) for word, key in _KEYS.items())
        words = "".join(f" {word} {value}" for word, value in values if value is not None)
        yield f"{flow.source}->{flow.target}{words}"
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
    nodes = counts.get("Nodes", 0)
    matrix = ConnectionMatrix(nodes, tuple(connections), tuple(triggers), tuple(failures))
    if fault := next(_faults(matrix, counts), ""):
        raise TraceError(source, "", fault)
    return matrix


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


def _faults(matrix: ConnectionMatrix, announced: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each contradiction between the lines of a file."""
    if "Nodes" not in announced:
        yield "Nodes is missing"
    for name, listed in matrix.counts.items():
        if announced.get(name, 0) != listed:
            yield f"{announced.get(name, 'no')} {name} are announced, {listed} given"
    known = {trigger.number for trigger in matrix.triggers}
    if len(known) < len(matrix.triggers):
        yield "two triggers have the same id"
    for flow in matrix.connections:
        for number in (flow.trigger, flow.send_done, flow.receive_done):
            if number is not None and number not in known:
                yield f"{flow.source}->{flow.target}: there is no trigger {number}"
