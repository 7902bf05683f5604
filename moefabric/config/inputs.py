"""Files that an experiment reads, and SHA-256 digests of them and of the experiment itself."""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import file_digest, sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

from moefabric.config.experiment import ExperimentSpec
from moefabric.config.input_file import document_value
from moefabric.config.section import Section
from moefabric.core.errors import SpecError, UnreadableError

EXPERIMENT = "experiment"
"""Key of the experiment's own digest."""


def input_digests(spec: ExperimentSpec, folder: Path) -> list[tuple[str, str, str]]:
    """Return key, name and digest of the experiment and of each file that it names.

    The experiment's digest is that of its keys which aren't the default ones, with names in the
    place of paths: equal experiments in two folders have one digest.

    Args:
        folder: Folder of the experiment's file; relative paths start there.

    Raises:
        SpecError: A file can't be read.
    """
    values = spec.model_dump(mode="python", exclude_defaults=True)
    text = json.dumps(document_value(values, attrgetter("name")), sort_keys=True, default=str)
    experiment = EXPERIMENT, spec.experiment, sha256(text.encode()).hexdigest()
    return [
        experiment,
        *((key, path.name, digest_of(folder / path, key)) for key, path in named_paths(spec)),
    ]


def check_gating_digest(spec: ExperimentSpec, folder: Path) -> None:
    """Check the gating's file against the digest that the experiment declares, if it does.

    Raises:
        SpecError: The file has another digest, or can't be read.
    """
    declared, file = spec.gating.sha256, spec.gating.file
    if declared is None or file is None:
        return
    digest = digest_of(folder / file, "gating.sha256")
    if digest != declared:
        message = f"{file.name} is another file than declared: its SHA-256 is {digest}"
        raise SpecError([("gating.sha256", message)])


def digest_of(path: Path, place: str) -> str:
    """Return the SHA-256 of a file as `sha256sum` prints it; of a folder, that of all its files.

    A folder's digest is that of the lines `DIGEST  NAME` of its files, in the order of the names.

    Raises:
        SpecError: The file or the folder can't be read.
    """
    try:
        if not path.is_dir():
            return _file_digest(path)
        names = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())
        lines = [f"{_file_digest(path / name)}  {name}\n" for name in names]
    except OSError as error:
        raise UnreadableError(path, error, place) from error
    return sha256("".join(lines).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    if not path.is_file():  # a pipe would never end
        raise OSError("is no file")
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def named_paths(value: Any, place: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the places of a section's paths, and the paths."""
    match value:
        case Path():
            yield place, value
        case Section():
            yield from named_paths(dict(value), place)
        case Mapping():
            for key, entry in value.items():
                yield from named_paths(entry, f"{place}.{key}" if place else str(key))
        case str():
            pass
        case Sequence():
            for number, entry in enumerate(value):
                yield from named_paths(entry, f"{place}[{number}]")
