"""The failure log: a file of a running fabric in which everyone who breaks, mends, misses or replaces something notes it, one JSON line each."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

from moefabric.management import RunDir

Do = Literal["inject", "clear", "detected", "recovered"]
FILE: Final = "failures.jsonl"


@dataclass(frozen=True)
class Note:
    """What was done about what, and when (CLOCK_MONOTONIC); `why` is what was seen, or how things went on."""

    at_ns: int
    do: Do
    kind: str
    what: tuple[str, ...]
    why: str = ""


def note(
    run_dir: RunDir, do: Do, kind: str, what: Sequence[str], why: str = "", at_ns: int | None = None
) -> Note:
    """Append a note, of now unless an instant is given; it is whole or not there, whoever else writes."""
    made = Note(time.monotonic_ns() if at_ns is None else at_ns, do, kind, tuple(what), why)
    with (run_dir.path / FILE).open("ab", buffering=0) as file:
        file.write(json.dumps(asdict(made)).encode() + b"\n")
    return made


def read(run_dir: RunDir) -> list[Note]:
    """All notes till now, in the order in which they were made; one that is being written is left for the next time."""
    try:
        lines = (run_dir.path / FILE).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return sorted((_note(line) for line in lines if line.endswith("\n")), key=lambda made: made.at_ns)


def _note(line: str) -> Note:
    said = json.loads(line)
    return Note(said["at_ns"], said["do"], said["kind"], tuple(said["what"]), said["why"])
