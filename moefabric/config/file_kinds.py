"""Kinds of files, told by their outermost keys, so that a wrong one names the command for it."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from moefabric.config.input_file import read_yaml
from moefabric.core.errors import SpecError

_KINDS: Final = {
    "experiment": ("describes an experiment", "`moefabric run`", "an experiment"),
    "fabric": ("describes a fabric", "`moefabric up`", "a fabric"),
    "sweep": ("describes a sweep", "`moefabric sweep`", "a sweep"),
    "model": ("describes a model", "`moefabric model show`", "a model"),
    "hosts": ("lists hosts", "`moefabric run --hosts`", "a list of hosts"),
    "demand": ("is a demand", "`moefabric plan --demand`", "a demand"),
    "trace": ("is a trace", "`moefabric replay`", "a trace"),
    "result": ("is the result of a run", "`moefabric report`", "the result of a run"),
    "sweep-result": (
        "is the result of a sweep (report.html beside it shows it, runs/ has its runs)",
        "no command",
        "the result of a sweep",
    ),
    "prediction": ("is a prediction", "no command", "a prediction"),
    "replay": ("is the result of a replay", "no command", "the result of a replay"),
    "perf": ("is the result of `moefabric perf`", "no command", "the result of a collective"),
}
"""By kind: what a file of it does, which command takes it, and what it is."""
_KEYS: Final = (
    ({"sweep", "runs", "points"}, "sweep-result"),
    ({"sweep"}, "sweep"),
    ({"manifest", "experiment"}, "result"),
    ({"experiment", "inputs"}, "prediction"),
    ({"experiment", "fabric"}, ""),
    ({"experiment"}, "experiment"),
    ({"fabric", "trace", "seconds"}, "replay"),
    ({"fabric", "algorithm", "rows"}, "perf"),
    ({"fabric"}, "fabric"),
    ({"architectures"}, "model"),
    ({"model_type"}, "model"),
)
"""Outermost keys and the kind that they tell; the first that a document has count."""
_START: Final = 1 << 16


def kind_of(document: object) -> str:
    """Return the kind of a document by its outermost keys; empty if it is told by none."""
    keys = set(document) if isinstance(document, dict) else set()
    if "hosts" in keys and keys <= {"hosts", "defaults"}:
        return "hosts"
    return next((kind for known, kind in _KEYS if known <= keys), "")


def refuse_other_kind(path: Path, needed: str) -> None:
    """Refuse a file that can be read and is empty or of another kind.

    Args:
        needed: The kind that is needed.

    Raises:
        SpecError: If it is; it names the command that takes another kind.
    """
    if path.is_file() and not path.stat().st_size:
        raise SpecError([(str(path), f"is empty; {_KINDS[needed][2]} is needed")])
    kind = "result" if _is_result(path) else ""
    with suppress(SpecError):
        kind = kind or kind_of(read_yaml(path))
    _refuse(kind, path, needed)


def read_kind(path: Path, needed: str, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the contents of a YAML file of a kind; the values have not been checked.

    Args:
        needed: The kind.
        settings: Changes such as `a.b[0].c=value`.

    Raises:
        SpecError: If the file can't be read, or is of another kind.
    """
    if _is_result(path):  # large, and no YAML that is worth reading
        _refuse("result", path, needed)
    document = read_yaml(path, settings, _KINDS[needed][2])
    _refuse(kind_of(document), path, needed)
    return document


def _refuse(kind: str, path: Path, needed: str) -> None:
    if kind in ("", needed):
        return
    does, command, _ = _KINDS[kind]
    message = f"{does}, which {command} takes; {_KINDS[needed][2]} is needed"
    raise SpecError([(str(path), message)])


def _is_result(path: Path) -> bool:
    """Return whether a file starts like the JSON of a run, or like its journal."""
    try:
        with path.open("rb") as file:
            start = file.read(_START).lstrip()
    except OSError:
        return False
    return start.startswith(b"{") and b'"manifest"' in start
