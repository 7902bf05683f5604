"""Failure log of a running fabric: a JSON line per injection, clearing, detection or recovery."""

import fcntl
import json
import logging
import time
from collections.abc import Sequence
from typing import Final

from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureEvent, FailurePhase
from moefabric.runtime.atomic_file import append_whole
from moefabric.runtime.run_directory import RunDirectory

log = logging.getLogger(__name__)

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

    Several processes may write at once: a line is written whole or not at all. An event that
    can't be written is logged as a warning, because the failure itself matters more.

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
    try:
        _append(run_dir, json.dumps(line).encode() + b"\n")
    except FileNotFoundError:  # the fabric is gone
        raise
    except OSError as error:
        log.warning("failure log of %s not written: %s", run_dir.name, error.strerror)
    return event


def _append(run_dir: RunDirectory, line: bytes) -> None:
    """Append a line; raise OSError, and leave the log as it was, if it can't be written whole."""
    with (run_dir.path / FAILURE_LOG).open("ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        append_whole(file, line)


def read_failure_log(run_dir: RunDirectory) -> list[FailureEvent]:
    """Return all events so far in order of time, without a line that is still being written.

    Lines that are no events are skipped; a warning gives their number.

    Raises:
        UnsupportedError: If the fabric belongs to another user.
    """
    try:
        text = (run_dir.path / FAILURE_LOG).read_text(errors="replace")
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise run_dir.of_another_user() from error
    whole, _, _unfinished = text.rpartition("\n")
    lines = list(filter(None, whole.split("\n")))
    events = [event for event in map(_event, lines) if event is not None]
    if skipped := len(lines) - len(events):
        log.warning("%s: skipped %d lines that are no events", run_dir.path / FAILURE_LOG, skipped)
    return sorted(events, key=lambda event: event.at_ns)


def ended_processes(run_dir: RunDirectory) -> tuple[str, ...]:
    """Return the processes of a fabric that have ended and have not been started again, and how."""
    ended = dict[str, str]()
    for event in read_failure_log(run_dir):
        if event.kind is FailureKind.PROCESS:
            for name in event.what:
                if event.phase == "clear":
                    ended.pop(name, None)
                else:
                    ended[name] = f"{name} {event.why}"
    return tuple(ended.values())


def end_remedy(run_dir: RunDirectory) -> str:
    """Return which processes of a fabric have ended, and the remedy; empty if none have."""
    if not (ended := ended_processes(run_dir)):
        return ""
    starts_again = all(end.startswith("controllers ") for end in ended)
    remedy = "it starts again: try again in a few seconds"
    if not starts_again:
        remedy = f"`moefabric up` with the file of {run_dir.name} makes the fabric anew"
    return f"{run_dir.name}: {', '.join(ended)}; {remedy}"


def _event(line: str) -> FailureEvent | None:
    """Return the event of a line; None if it is none."""
    try:
        entry = json.loads(line)
        kind, what = FailureKind(entry["kind"]), tuple(map(str, entry["what"]))
        return FailureEvent(int(entry["at_ns"]), entry["do"], kind, what, str(entry["why"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
