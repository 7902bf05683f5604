"""Checks whether a stopped run may go on: experiment, version and machine have to be equal."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import SpecError
from moefabric.results.journal import HeaderLine, JournalReader

_MACHINE: Final = ("kernel", "cores", "scale", "congestion_control")
"""Circumstances on which measurements depend."""


def resumable(path: Path, header: HeaderLine) -> JournalReader:
    """Return the journal of a stopped run that may go on.

    Args:
        path: The journal.
        header: The header of a run that would begin now.

    Raises:
        SpecError: If there is no journal, or experiment, version or machine differ; it names the
            differences.
    """
    if not path.is_file():
        raise SpecError([(str(path), "there is no run to resume: leave out --resume")])
    reader = JournalReader(path)
    faults = list(_differences(reader.header, header))
    if faults:
        remedy = "differs from the run that was stopped"
        raise SpecError(
            [(place, f"{remedy} ({was} there, {now} here)") for place, was, now in faults]
        )
    return reader


def _differences(was: HeaderLine, now: HeaderLine) -> Iterator[tuple[str, object, object]]:
    """Yield place and values of each difference."""
    yield from _different("experiment", was.spec, now.spec)
    for name in ("version", "flows", "trains"):
        yield from _different(name, getattr(was, name), getattr(now, name))
    for name in _MACHINE:
        yield from _different(name, getattr(was.manifest, name), getattr(now.manifest, name))


def _different(place: str, was: Any, now: Any) -> Iterator[tuple[str, object, object]]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted({*was, *now}):
            yield from _different(f"{place}.{key}", was.get(key), now.get(key))
    elif was != now:
        yield place, was, now
