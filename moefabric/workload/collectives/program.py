"""Programs: computation and exchanges of each rank, with every collective in steps.

A program has operations by rank, like the execution graph that it comes from. An operation computes
or takes part in a call. Calls of equal sizes share one schedule. `Program.steps` writes the steps
of a rank out, for whatever runs or simulates them one by one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import gcd
from typing import Final, Literal, Self

from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric
from moefabric.workload.collectives.schedule import (
    REDUCTIONS,
    Call,
    CollectiveSchedule,
    Extent,
    Ranks,
    Schedule,
    Servers,
    Sizes,
    Step,
    StepKind,
    Via,
    cut,
    schedule_call,
)
from moefabric.workload.collectives.steps import RankSteps, schedule_of
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node

Schedules = Mapping[CollectiveKind, CollectiveSchedule]
"""The algorithm of each collective."""
NO_CALL: Final = -1
NO_TRANSFER: Final = -1
_ELEMENT: Final = 4
"""Bytes of a number that reductions add, unless a size is no multiple of it."""
DEFAULT_NVSWITCH_BPS: Final = 3.6e12
"""900 GB/s both ways together, as in the paper's simulation (section 7.1)."""


@dataclass(frozen=True, slots=True)
class ProgramOperation:
    """A rank computes, or takes part in a call.

    Attributes:
        after: Positions of earlier operations of the same rank that end before this one starts.
        duration_s: Seconds of a computation.
        call: Position of the call; `NO_CALL` for a computation.
        name: Its name in the trace.
        node: Its number in the execution graph.
    """

    after: tuple[int, ...] = ()
    duration_s: float = 0.0
    call: int = NO_CALL
    name: str = ""
    node: int = 0


@dataclass(frozen=True)
class ProgramCall:
    """A collective of a program. Each call has buffers of its own, on each of its ranks.

    Attributes:
        ranks: The ranks that take part; the schedule names them by their position here.
        call: Kind, sizes and root.
        schedule: The steps of each rank.
    """

    ranks: tuple[int, ...]
    call: Call
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """Step of a rank: of a call, or a computation.

    Attributes:
        number: Position among the rank's steps.
        kind: What it does. A `compute` step of no duration joins the steps of a call.
        after: Positions of earlier steps of the same rank that end before this one starts.
        duration_s: Seconds of a computation.
        call: Position of the call in the program, whose buffers the step uses.
        extent: As in `schedule.Step`.
        source: As in `schedule.Step`.
        peer: The rank that it sends to or receives from.
        transfer: Number that a `send` and the step that receives its bytes share with no others.
        phase: As in `schedule.Step`.
        via: As in `schedule.Step`.
        operation: Position of its operation.
    """

    number: int
    kind: StepKind | Literal["compute"]
    after: tuple[int, ...] = ()
    duration_s: float = 0.0
    call: int = NO_CALL
    extent: Extent | None = None
    source: Extent | None = None
    peer: int = -1
    transfer: int = NO_TRANSFER
    phase: str = ""
    via: Via = ""
    operation: int = 0


@dataclass(frozen=True)
class Program:
    """The operations of all ranks.

    Attributes:
        operations: Operations by rank; each waits for earlier ones only.
        calls: The collectives and messages between ranks.
        notes: What was assumed, a sentence each.
    """

    operations: tuple[tuple[ProgramOperation, ...], ...]
    calls: tuple[ProgramCall, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of_call(cls, call: Call, schedule: Schedule) -> Self:
        """Return the program of one collective of all ranks."""
        ranks = tuple(range(call.ranks))
        operation = ProgramOperation(call=0, name=call.kind)
        return cls(((operation,),) * call.ranks, (ProgramCall(ranks, call, schedule),))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.operations)

    def steps(self, rank: int) -> Iterator[ProgramStep]:
        """Yield the steps of a rank; each waits for earlier ones only."""
        ends: list[tuple[int, ...]] = []
        count = 0
        for position, operation in enumerate(self.operations[rank]):
            before = tuple(sorted({step for other in operation.after for step in ends[other]}))
            if operation.call == NO_CALL:
                seconds = operation.duration_s
                own = [ProgramStep(count, "compute", before, seconds, operation=position)]
            else:
                own = list(self._call_steps(operation.call, rank, position, before, count))
            last = {step.number for step in own} - {other for step in own for other in step.after}
            if len(last) > 1:
                number = count + len(own)
                join = ProgramStep(number, "compute", tuple(sorted(last)), operation=position)
                own, last = [*own, join], {number}
            ends.append(tuple(last) or before)
            count += len(own)
            yield from own

    def _call_steps(
        self, number: int, rank: int, position: int, before: tuple[int, ...], first: int
    ) -> Iterator[ProgramStep]:
        call = self.calls[number]
        index = call.ranks.index(rank)
        transfers = self._transfers[id(call.schedule)]
        for step in call.schedule.steps[index]:
            transfer = transfers.get((index, step.number))
            yield ProgramStep(
                first + step.number,
                step.kind,
                tuple(first + other for other in step.after) or before,
                call=number,
                extent=step.extent,
                source=step.source,
                peer=call.ranks[step.peer] if step.peer >= 0 else -1,
                transfer=NO_TRANSFER if transfer is None else self._bases[number] + transfer,
                phase=step.phase,
                via=step.via,
                operation=position,
            )

    @cached_property
    def _transfers(self) -> dict[int, dict[Ranks, int]]:
        schedules = {id(call.schedule): call.schedule for call in self.calls}
        return {key: transfers(schedule) for key, schedule in schedules.items()}

    @cached_property
    def _bases(self) -> list[int]:
        counts = [len(self._transfers[id(call.schedule)]) // 2 for call in self.calls]
        return [0, *accumulate(counts)]


def transfers(schedule: Schedule) -> dict[Ranks, int]:
    """Return the number of each transfer by (rank, step), for the sender's and receiver's step.

    Raises:
        SpecError: If a send and a receive don't match.
    """
    sends: defaultdict[Ranks, list[Step]] = defaultdict(list)
    receives: defaultdict[Ranks, list[Step]] = defaultdict(list)
    for rank, steps in enumerate(schedule.steps):
        for step in steps:
            if step.kind == "send":
                sends[rank, step.peer].append(step)
            elif step.kind != "copy":
                receives[step.peer, rank].append(step)
    numbers: dict[Ranks, int] = {}
    for pair in sorted(sends.keys() | receives.keys()):
        sent, received = sends[pair], receives[pair]
        if [step.extent.size for step in sent] != [step.extent.size for step in received]:
            source, target = pair
            fault = f"the sends of rank {source} to rank {target} are not what it receives"
            raise SpecError([(f"schedule {schedule.name}", fault)])
        for send, receive in zip(sent, received, strict=True):
            numbers[pair[0], send.number] = numbers[pair[1], receive.number] = len(numbers) // 2
    return numbers


@dataclass(frozen=True)
class RankPlaces:
    """Places of ranks in the network, as schedules see them.

    Attributes:
        servers: Index of each rank's server. Empty: a server each.
        circuits: As in `schedule.Call`, with the job's ranks.
        eps_ranks: As in `schedule.Call`, with the job's ranks.
    """

    servers: tuple[int, ...] = ()
    circuits: Mapping[Servers, tuple[Ranks, ...]] = field(default_factory=dict)
    eps_ranks: tuple[int, ...] = ()

    @classmethod
    def on_fabric(cls, fabric: Fabric, circuits: CircuitSet, servers: Sequence[str]) -> Self:
        """Return the places of ranks on servers of a fabric.

        NIC i of a server, optical ones first, belongs to its rank i, modulo its number of ranks.

        Args:
            circuits: Circuits that are lit.
            servers: Server of each rank.
        """
        index = fabric.server_index
        by_server: defaultdict[str, list[int]] = defaultdict(list)
        for rank, server in enumerate(servers):
            by_server[server].append(rank)
        lit: defaultdict[Servers, list[Ranks]] = defaultdict(list)
        for circuit in circuits:
            for near, far in circuit.directions:
                if near.server in by_server and far.server in by_server:
                    one, other = by_server[near.server], by_server[far.server]
                    ends = one[near.index % len(one)], other[far.index % len(other)]
                    lit[index[near.server], index[far.server]].append(ends)
        nics = range(fabric.optical, fabric.optical + fabric.electrical)
        eps = {ranks[nic % len(ranks)] for ranks in by_server.values() for nic in nics}
        ends_of = {pair: tuple(ends) for pair, ends in lit.items()}
        return cls(tuple(index[server] for server in servers), ends_of, tuple(sorted(eps)))

    def call(self, kind: CollectiveKind, sizes: Sizes, ranks: Sequence[int], root: int = 0) -> Call:
        """Return a call of some ranks.

        Args:
            sizes: As in `schedule.Call`.
            ranks: The ranks that take part.
            root: Position of the root among them.
        """
        index = {rank: position for position, rank in enumerate(ranks)}
        servers = tuple(self.servers[rank] for rank in ranks) if self.servers else ()
        circuits = {
            pair: own
            for pair, ends in self.circuits.items()
            if (own := tuple((index[a], index[b]) for a, b in ends if a in index and b in index))
        }
        eps = tuple(index[rank] for rank in self.eps_ranks if rank in index)
        element = gcd(_ELEMENT, sizes[0][0]) if kind in REDUCTIONS else _ELEMENT
        return Call(kind, sizes, len(ranks), root, element, servers, circuits, eps)


def lower(graph: ExecutionGraph, schedules: Schedules, places: RankPlaces | None = None) -> Program:
    """Return the program of an execution graph.

    Args:
        graph: Operations of each rank.
        schedules: The algorithm of each collective that the graph has.
        places: Where ranks are.

    Raises:
        SpecError: If the graph is impossible, or an algorithm is missing or can't do a call.
    """
    if faults := [(graph.name or "graph", fault) for fault in graph.faults()]:
        raise SpecError(faults)
    return _Lowering(graph, schedules, places or RankPlaces()).program()


class _Lowering:
    """The calls of a graph so far, and the schedules that calls share."""

    def __init__(self, graph: ExecutionGraph, schedules: Schedules, places: RankPlaces) -> None:
        self._graph, self._schedules, self._places = graph, schedules, places
        self._calls: list[ProgramCall] = []
        self._by_node: dict[tuple[int, int], int] = {}
        """Position of the call of (rank, number of the operation)."""
        self._shared: dict[Call, Schedule] = {}
        self._notes: dict[str, None] = dict.fromkeys(graph.notes)

    def program(self) -> Program:
        for members in self._graph.meetings():
            if members[0][1].kind != "compute":
                self._add_call([rank for rank, _ in members], [node for _, node in members])
        operations = (self._operations(*own) for own in sorted(self._graph.ranks.items()))
        return Program(tuple(operations), tuple(self._calls), tuple(self._notes))

    def _add_call(self, ranks: Sequence[int], nodes: Sequence[Node]) -> None:
        first = nodes[0]
        if first.collective is None:  # a message
            if ranks[0] == ranks[1]:
                place = f"rank {ranks[0]}, operation {first.number}"
                raise SpecError([(place, "a rank does not send messages to itself")])
            call = self._places.call("all_to_all", ((0, first.size), (0, 0)), ranks)
        else:
            root = ranks.index(first.root) if first.root in ranks else 0
            sizes = self._sizes(first.collective, nodes, root)
            call = self._places.call(first.collective, sizes, ranks, root)
        if call not in self._shared:
            self._shared[call] = self._schedule(call, first)
        for rank, node in zip(ranks, nodes, strict=True):
            self._by_node[rank, node.number] = len(self._calls)
        self._calls.append(ProgramCall(tuple(ranks), call, self._shared[call]))

    def _schedule(self, call: Call, node: Node) -> Schedule:
        if node.collective is None:
            return _message(call)
        if call.kind not in self._schedules:
            fault = f"no schedule is given for {call.kind}"
            raise SpecError([(f"group {node.group}", fault)])
        return schedule_call(self._schedules[call.kind], call)

    def _sizes(self, kind: CollectiveKind, nodes: Sequence[Node], root: int) -> Sizes:
        if kind == "all_to_all":
            equal = (cut(Extent("input", 0, node.size), len(nodes), 1) for node in nodes)
            parts = [tuple(one.size for one in row) for row in equal]
            return tuple(node.splits or row for node, row in zip(nodes, parts, strict=True))
        if kind in {"broadcast", "scatter"}:
            return ((nodes[root].size,),)
        sizes = {node.size for node in nodes}
        if len(sizes) > 1:
            note = f"Ranks give different sizes of an {kind}; the largest one is taken."
            self._notes[note] = None
        return ((max(sizes),),)

    def _operations(self, rank: int, nodes: tuple[Node, ...]) -> tuple[ProgramOperation, ...]:
        """Return a rank's operations, each after those that it waits for."""
        waits = self._graph.dependencies(rank)
        positions: dict[int, int] = {}
        operations: list[ProgramOperation] = []
        for node in _in_order(nodes, waits):
            positions[node.number] = len(operations)
            after = tuple(sorted({positions[other] for other in waits[node.number]}))
            call = self._by_node.get((rank, node.number), NO_CALL)
            done = ProgramOperation(after, node.duration_s, call, node.name, node.number)
            operations.append(done)
        return tuple(operations)


def _message(call: Call) -> Schedule:
    """Return the schedule of a message from the first to the second of two ranks."""
    sender, receiver = RankSteps(), RankSteps()
    sender.send(1, call.input_part(0, 1), "message")
    receiver.receive(0, call.output_part(1, 0), "message")
    return schedule_of("message", call, (sender, receiver))


def _in_order(nodes: Sequence[Node], waits: Mapping[int, Sequence[int]]) -> Iterator[Node]:
    """Yield operations so that each follows those that it waits for, otherwise as they stand."""
    by_number = {node.number: node for node in nodes}
    done: set[int] = set()
    for node in nodes:
        stack = [node.number]
        while stack:
            number = stack[-1]
            missing = [other for other in waits[number] if other not in done]
            if number in done or not missing:
                stack.pop()
                if number not in done:
                    done.add(number)
                    yield by_number[number]
            else:
                stack += missing
