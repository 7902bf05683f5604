"""Failure log of a running fabric: a JSON line per injection, clearing, detection or recovery."""

import json
import time
from collections.abc import Sequence
from typing import Final

from moefabric.config.run_directory import RunDirectory
from moefabric.core.failures import FailureEvent, FailureKind, FailurePhase

FAILURE_LOG: Final = "failures.jsonl"


def append_failure_event(
    run_dir: RunDirectory,
    phase: FailurePhase,
    kind: str,
    what: Sequence[str],
    why: str = "",
    at_ns: int | None = None,
) -> FailureEvent:
    """Append an event to the log and return it.

    Several processes may write at once: a line is written whole.

    Args:
        run_dir: the fabric's run directory.
        phase: what happened.
        kind: kind of the failure.
        what: names of the components.
        why: evidence of a detection or action of a recovery, as text.
        at_ns: instant on the monotonic clock; None is now.
    """
    instant = time.monotonic_ns() if at_ns is None else at_ns
    event = FailureEvent(instant, phase, FailureKind(kind), tuple(what), why)
    line = {"at_ns": instant, "do": phase, "kind": kind, "what": list(what), "why": why}
    with (run_dir.path / FAILURE_LOG).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
    return event


def read_failure_log(run_dir: RunDirectory) -> list[FailureEvent]:
    """Return all events so far in order of time, without a line that is still being written."""
    try:
        lines = (run_dir.path / FAILURE_LOG).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    events = (_event(line) for line in lines if line.endswith("\n"))
    return sorted(events, key=lambda event: event.at_ns)


def _event(line: str) -> FailureEvent:
    entry = json.loads(line)
    what = tuple(entry["what"])
    return FailureEvent(entry["at_ns"], entry["do"], FailureKind(entry["kind"]), what, entry["why"])
