"""GOAL, the input of LogGOPSim: a program of sends, receives and computation for each rank.

    num_ranks 2

    rank 0 {
    l1: calc 1500000
    l2: send 1024b to 1 tag 1
    l2 requires l1
    }

    rank 1 {
    l1: recv 1024b from 0 tag 1
    }

`txt2bin -i FILE -o FILE.bin` and then `LogGOPSim -f FILE.bin -L 1000000 -o 0 -g 0 -G 80 -O 0 -S
2000000000` simulate 100 Gb/s and a latency of 1 us; all times are picoseconds there. Files of other
programs mostly have nanoseconds. Files of this module say their unit in a comment.

A stream of a graph is a CPU whose operations require each other in order. Names of operations are
comments at the ends of lines. GOAL has no collectives.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from moefabric.core.errors import SpecError, TraceError
from moefabric.runtime.atomic_file import write_whole
from moefabric.traces.files import read_text
from moefabric.traces.formats import checked_graph
from moefabric.traces.messages import lowered
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node, NodeKind

_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12}
"""Units of time, in parts of a second."""
_WRITTEN_UNIT: Final = "ps"
MAX_OPERATIONS: Final = 4_000_000
"""Operations of a file, of all ranks."""
MAX_RANKS: Final = 1 << 16

_RANKS = re.compile(r"num_ranks\s+(\d{1,9})")
_RANK = re.compile(r"rank\s+(\d{1,9})\s*\{")
_OPERATION = re.compile(
    r"(?:(?P<label>\w+)\s*:\s*)?(?:(?P<kind>send|recv)\s+(?P<size>\d{1,18})b\s+(?:to|from)\s+"
    r"(?P<peer>-?\d{1,9})(?:\s+tag\s+(?P<tag>-?\d{1,18}))?|calc\s+(?P<calc>\d{1,18}))"
    r"(?:\s+cpu\s+(?P<cpu>\d{1,9}))?(?:\s+nic\s+\d{1,9})?"
)
_REQUIRES = re.compile(r"(\w+)\s+(i?)requires\s+(\w+)")
_UNIT = re.compile(r"//\s*time unit:\s*(\w+)\s*$")
_NUMBERED = re.compile(r"[A-Za-z_]+(\d{1,18})")
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def goal_text(graph: ExecutionGraph) -> str:
    """Return a graph of computation and messages as a GOAL program.

    Raises:
        SpecError: If the graph has collectives, or numbers below 0.
    """
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: ExecutionGraph) -> Iterator[str]:
    per_second = _UNITS[_WRITTEN_UNIT]
    if any(node.kind == "compute" for nodes in graph.ranks.values() for node in nodes):
        yield f"// time unit: {_WRITTEN_UNIT}"
    yield f"num_ranks {len(graph.ranks)}"
    for rank in sorted(graph.ranks):
        yield ""
        yield f"rank {rank} {{"
        last: dict[int, int] = {}
        for node in graph.ranks[rank]:
            place = f"rank {rank}, operation {node.number}"
            if node.number < 0 or node.tag < 0:
                raise SpecError([(place, "GOAL has no numbers or tags below 0")])
            match node.kind:
                case "compute":
                    words = f"calc {round(node.duration_s * per_second)}"
                case "send":
                    words = f"send {node.size}b to {node.peer} tag {node.tag}"
                case "receive":
                    words = f"recv {node.size}b from {node.peer} tag {node.tag}"
                case _:
                    message = f"GOAL has no {node.collective}: lower collectives to messages first"
                    raise SpecError([(place, message)])
            cpu = f" cpu {node.stream}" if node.stream >= 0 else ""
            comment = " ".join(node.name.replace("/*", "/ *").split())
            name = f" // {comment}" if node.name else ""
            yield f"l{node.number}: {words}{cpu}{name}"
            before = [last[node.stream]] if node.stream in last else []
            yield from (f"l{node.number} requires l{other}" for other in (*before, *node.after))
            if node.stream >= 0:
                last[node.stream] = node.number
        yield "}"


@dataclass
class _Program:
    """The program of a rank, as far as it is read."""

    nodes: list[Node] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    requires: list[tuple[int, str, bool, str]] = field(default_factory=list)
    """(line, label, only the start, label that it waits for) of each dependency."""


def goal_graph(text: str, name: str = "", source: object = "GOAL") -> ExecutionGraph:
    """Return the graph of a GOAL program.

    Numbers in labels become numbers of operations if they are different; otherwise operations are
    numbered in order. The operations of a CPU become a stream if each one requires the one before.
    `irequires`, which waits for a start, becomes waiting for what that operation waits for.

    Args:
        text: The program. Times without a unit are nanoseconds.
        name: Name of the graph.
        source: Name of the file, for errors.

    Raises:
        TraceError: If a line is no GOAL, or the program can't run.
    """
    reader = _Reader(source)
    for number, line in enumerate(_without_blocks(text).splitlines(), start=1):
        reader.read_line(number, line)
    return reader.graph(name)


class GoalReader:
    """Reads GOAL programs."""

    name = "goal"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether the first statement is `num_ranks`."""
        text = _without_blocks(head.decode("utf-8", "replace"))
        lines = (line.split("//", 1)[0].strip() for line in text.splitlines())
        return _RANKS.match(next(filter(None, lines), "")) is not None

    def read(self, path: Path) -> ExecutionGraph:
        """Read a program; see `goal_graph`."""
        return goal_graph(read_text(path), path.stem, path)


class GoalWriter:
    """Writes GOAL programs."""

    name = "goal"

    def write(self, graph: ExecutionGraph, path: Path) -> None:
        """Write a program; see `goal_text`. Collectives become messages."""
        write_whole(path, goal_text(lowered(graph)))


def _without_blocks(text: str) -> str:
    """Return a text without `/* */`; lines keep their numbers."""
    return _BLOCK_COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)


class _Reader:
    def __init__(self, source: object) -> None:
        self._source = source
        self._count = -1
        self._rank = -1
        self._programs: dict[int, _Program] = {}
        self._per_second = _UNITS["ns"]
        self._operations = 0
        self._notes: dict[str, None] = {}

    def read_line(self, number: int, line: str) -> None:
        """Read one line of the file."""
        if unit := _UNIT.match(line.strip()):
            if unit[1] not in _UNITS:
                raise self._error(number, f"{unit[1]} is not one of {', '.join(_UNITS)}")
            self._per_second = _UNITS[unit[1]]
            return
        words, _, comment = line.partition("//")
        words = words.strip()
        if not words:
            return
        if match := _RANKS.fullmatch(words):
            self._count = int(match[1])
            if not 0 < self._count <= MAX_RANKS:
                raise self._error(number, f"{match[1]} ranks are not 1 to {MAX_RANKS}")
        elif match := _RANK.fullmatch(words):
            self._start_rank(number, int(match[1]))
        elif words == "}" and self._rank >= 0:
            self._rank = -1
        elif self._rank >= 0 and (match := _OPERATION.fullmatch(words)):
            self._add(number, match, comment.strip())
        elif self._rank >= 0 and (match := _REQUIRES.fullmatch(words)):
            dependency = (number, match[1], bool(match[2]), match[3])
            self._programs[self._rank].requires.append(dependency)
        else:
            raise self._error(number, f"{words[:80]!r} is not GOAL")

    def _start_rank(self, number: int, rank: int) -> None:
        if self._rank >= 0:
            raise self._error(number, f"rank {self._rank} has no }} before")
        if not 0 <= rank < self._count:
            raise self._error(number, f"there is no rank {rank}")
        if rank in self._programs:
            raise self._error(number, f"rank {rank} has a program already")
        self._rank, self._programs[rank] = rank, _Program()

    def _add(self, number: int, match: re.Match[str], comment: str) -> None:
        program = self._programs[self._rank]
        self._operations += 1
        if self._operations > MAX_OPERATIONS:
            raise self._error(number, f"more than {MAX_OPERATIONS} operations can't be read")
        index = len(program.nodes)
        if label := match["label"]:
            if label in program.labels:
                raise self._error(number, f"label {label} is there twice")
            program.labels[label] = index
        stream = -1 if match["cpu"] is None else int(match["cpu"])
        if match["calc"] is not None:
            duration_s = int(match["calc"]) / self._per_second
            node = Node(index, "compute", comment, duration_s=duration_s, stream=stream)
        else:
            peer, tag = int(match["peer"]), int(match["tag"] or 0)
            if not 0 <= peer < self._count:
                hint = "messages from any rank can't be replayed" if peer == -1 else ""
                raise self._error(number, hint or f"there is no rank {peer}")
            if tag < 0:
                raise self._error(number, "messages with any tag can't be replayed")
            kind: NodeKind = "send" if match["kind"] == "send" else "receive"
            size = int(match["size"])
            node = Node(index, kind, comment, size=size, peer=peer, tag=tag, stream=stream)
        program.nodes.append(node)

    def graph(self, name: str) -> ExecutionGraph:
        """Return the graph of all lines."""
        if self._count < 0:
            raise TraceError(self._source, "", "num_ranks is missing")
        if self._rank >= 0:
            raise TraceError(self._source, "", f"the file ends within rank {self._rank}")
        ranks = {
            rank: self._nodes(self._programs.get(rank, _Program())) for rank in range(self._count)
        }
        graph = ExecutionGraph(ranks, name=name, notes=tuple(self._notes))
        return checked_graph(graph, self._source)

    def _nodes(self, program: _Program) -> tuple[Node, ...]:
        before: list[list[int]] = [[] for _ in program.nodes]
        starts: list[tuple[int, int]] = []
        for number, label, only_start, other in program.requires:
            missing = next((name for name in (label, other) if name not in program.labels), None)
            if missing is not None:
                raise self._error(number, f"there is no label {missing} in this rank")
            index, required = program.labels[label], program.labels[other]
            if only_start:
                starts.append((index, required))
            elif required not in before[index]:
                before[index].append(required)
        for index, required in starts:
            self._notes["irequires waits for all that the other operation waits for"] = None
            before[index] += [place for place in before[required] if place not in before[index]]
        streams = self._streams(program.nodes, before)
        numbers = _numbers(program)
        return tuple(
            replace(
                node,
                number=numbers[index],
                after=tuple(numbers[place] for place in before[index]),
                stream=node.stream if node.stream in streams else -1,
            )
            for index, node in enumerate(program.nodes)
        )

    def _streams(self, nodes: list[Node], before: list[list[int]]) -> set[int]:
        """Return the CPUs that are streams, and drop dependencies that their order implies."""
        members: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            if node.stream >= 0:
                members.setdefault(node.stream, []).append(index)
        streams = set()
        for cpu, indices in members.items():
            pairs = list(pairwise(indices))
            if all(earlier in before[later] for earlier, later in pairs):
                streams.add(cpu)
                for earlier, later in pairs:
                    before[later].remove(earlier)
            else:
                self._notes["operations of a CPU that don't wait for each other overlap"] = None
        return streams

    def _error(self, line: int, reason: str) -> TraceError:
        return TraceError(self._source, f"line {line}", reason)


def _numbers(program: _Program) -> list[int]:
    """Return the number of each operation: that of its label, or its position from 1."""
    matches = {index: _NUMBERED.fullmatch(label) for label, index in program.labels.items()}
    numbers = [int(match[1]) for _, match in sorted(matches.items()) if match]
    if len(set(numbers)) == len(program.nodes):
        return numbers
    return list(range(1, len(program.nodes) + 1))
