"""Finished parts of a long command, stored while the others are under way.

Example:
    A study that goes on where it was stopped::

        with finished_units(json_file, identity, resume=resume) as units:
            rows = [units.result(name, partial(measure, name)) for name in names]
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from glob import escape
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from pydantic import TypeAdapter

from moefabric.core.errors import SpecError
from moefabric.results.journal import JOURNAL_SUFFIX
from moefabric.runtime.atomic_file import append_lines, write_whole
from moefabric.runtime.run_directory import own_version

__all__ = ["Units", "file_digests", "finished_units", "units_file"]

T = TypeVar("T")


class Units:
    """Results by the names of units; each is in a file as soon as its unit has ended.

    Threads may add units at once.

    Attributes:
        results: The results so far.

    Args:
        file: The file; None for none.
        results: Results of an earlier run.
    """

    def __init__(self, file: Path | None = None, results: Mapping[str, Any] | None = None) -> None:
        self._file, self.results = file, dict(results or {})
        self._appending = Lock()

    def result(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the result of a unit, which `compute` returns if it hasn't ended before.

        Args:
            name: Name of the unit, which no other one has.
            compute: Returns the result, as JSON types.

        Raises:
            OutputError: If there is no room for it.
        """
        if name not in self.results:
            self.results[name] = compute()
            if self._file is not None:
                with self._appending:
                    append_lines(self._file, json.dumps([name, self.results[name]]) + "\n")
        return self.results[name]

    def value(self, name: str, kind: type[T], compute: Callable[[], T]) -> T:
        """Return the result of a unit whose type pydantic knows.

        Args:
            name: As in `result`.
            kind: The type: a model, a dataclass, a list or a mapping of these.
            compute: Returns the result.

        Raises:
            OutputError: As `result`.
        """
        adapter = TypeAdapter(kind)
        dump = partial(adapter.dump_python, mode="json", by_alias=True, exclude_unset=True)
        return adapter.validate_python(self.result(name, lambda: dump(compute())))

    def journal(self, name: str) -> tuple[Path | None, bool]:
        """Return the journal of a unit that is a run, and whether the run has begun before."""
        if self._file is None:
            return None, False
        path = self._file.with_name(f"{self._file.name}.{name}{JOURNAL_SUFFIX}")
        try:
            with path.open("rb") as file:
                return path, file.readline().endswith(b"\n")
        except FileNotFoundError:
            return path, False


def units_file(json_file: Path | None) -> Path | None:
    """Return the file of units beside that of a command's JSON; None if that is no file."""
    if json_file is None or str(json_file) == "-":
        return None
    return json_file.with_name(f"{json_file.name}.units")


def file_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of those of some paths that are files."""
    files = sorted(path for path in paths if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@contextmanager
def finished_units(
    json_file: Path | None, identity: Mapping[str, Any], *, resume: bool
) -> Iterator[Units]:
    """Keep the results of units beside a command's JSON until the end of the `with`.

    After an exception, and after a crash at any instant, the file stays for `resume`, as do
    journals of its units.

    Args:
        json_file: The command's JSON.
        identity: What the results depend on: digests of files, options. This version of moefabric
            belongs to it, too.
        resume: Whether to keep the results of a run that was stopped.

    Raises:
        SpecError: With `resume`, if there is no such run, or it is another one's.
        OutputError: If the file can't be written.
    """
    file, head = units_file(json_file), {"version": own_version(), **identity}
    if resume and file is None:
        raise SpecError([("--resume", "give the --json file of the run that was stopped")])
    results = _earlier(file, head) if resume and file is not None else {}
    if file is not None:
        if not resume:
            _remove_journals(file)
        lines = [head, *map(list, results.items())]
        write_whole(file, "".join(f"{json.dumps(line)}\n" for line in lines))
    yield Units(file, results)
    if file is not None:
        _remove_journals(file)
        file.unlink(missing_ok=True)


def _remove_journals(file: Path) -> None:
    for journal in file.parent.glob(f"{escape(file.name)}.*{JOURNAL_SUFFIX}*"):
        journal.unlink()


def _earlier(file: Path, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a run that was stopped; a last line that was cut off is left out."""
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
        first, *others = (json.loads(line) for line in lines)
        results = {str(name): result for name, result in others}
    except FileNotFoundError:
        message = "there is no run to resume: leave out --resume"
        raise SpecError([(str(file), message)]) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise SpecError([(str(file), f"is no record of units: {error}")]) from error
    if first != head:
        names = ", ".join(sorted(k for k in {*first, *head} if first.get(k) != head.get(k)))
        raise SpecError([(str(file), f"is of another run ({names} differ): leave out --resume")])
    return results
