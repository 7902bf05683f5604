"""GOAL, the input of LogGOPSim: a program of sends and receives for each rank.

    num_ranks 2

    rank 0 {
    l1: send 1024b to 1 tag 1
    }

    rank 1 {
    l1: recv 1024b from 0 tag 1
    }

`txt2bin -i FILE -o FILE.bin` and then `LogGOPSim -f FILE.bin -L 1000000 -o 0 -g 0 -G 80 -O 0 -S
2000000000` simulate 100 Gb/s and a latency of 1 us; all times are picoseconds there.
"""

import re
from collections import defaultdict
from collections.abc import Iterator

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError
from moefabric.oracle.connection_matrix import whole_bytes

_RANKS = re.compile(r"num_ranks\s+(\d+)$")
_RANK = re.compile(r"rank\s+(\d+)\s*\{$")
_SEND = re.compile(r"(?:l\w+:\s*)?(send|recv)\s+(\d+)b\s+(?:to|from)\s+(\d+)(?:\s+tag\s+(\d+))?")
_IGNORED = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def goal_text(demand: DemandMatrix) -> str:
    """Return a demand as a GOAL program.

    In step n of n, each rank sends to the rank n after it and receives from the rank n before it.
    No operation waits for another. Pairs that owe nothing have no operation.
    """
    return "\n".join(_lines(demand)) + "\n"


def _lines(demand: DemandMatrix) -> Iterator[str]:
    owed, ranks = whole_bytes(demand), len(demand.servers)
    yield f"num_ranks {ranks}"
    for rank in range(ranks):
        yield ""
        yield f"rank {rank} {{"
        label = 0
        for step in range(1, ranks):
            to, source = (rank + step) % ranks, (rank - step) % ranks
            for size, words in (
                (owed.get((rank, to), 0), f"to {to}"),
                (owed.get((source, rank), 0), f"from {source}"),
            ):
                if size:
                    label += 1
                    kind = "send" if words.startswith("to") else "recv"
                    yield f"l{label}: {kind} {size}b {words} tag {step}"
        yield "}"


def goal_demand(text: str) -> DemandMatrix:
    """Return the bytes that each rank of a GOAL program sends each other one.

    Dependencies and computation are ignored.

    Raises:
        SpecError: If a line is no GOAL, or sends and receives of two ranks don't match.
    """
    ranks, rank = 0, -1
    sent: defaultdict[tuple[int, int], int] = defaultdict(int)
    received: defaultdict[tuple[int, int], int] = defaultdict(int)
    for number, line in enumerate(_IGNORED.sub("", text).splitlines(), start=1):
        words = line.strip()
        if match := _RANKS.match(words):
            ranks = int(match[1])
        elif match := _RANK.match(words):
            rank = int(match[1])
        elif match := _SEND.match(words):
            peer = int(match[3])
            if not 0 <= peer < ranks:
                raise SpecError([(f"line {number}", f"there is no rank {peer}")])
            if match[1] == "send":
                sent[rank, peer] += int(match[2])
            else:
                received[peer, rank] += int(match[2])
        elif words not in ("", "}") and not re.match(r"l\w+(:\s*calc\s|\s+i?requires\s)", words):
            raise SpecError([(f"line {number}", f"{words!r} is not GOAL")])
    if sent != received:
        a, b = next(iter({*sent.items()} ^ {*received.items()}))[0]
        message = f"rank {a} sends {sent[a, b]} bytes to {b}, which receives {received[a, b]}"
        raise SpecError([(f"rank {a}", message)])
    names = [f"s{n}" for n in range(ranks)]
    rows = [[sent.get((a, b), 0) for b in range(ranks)] for a in range(ranks)]
    return DemandMatrix(names, rows)
