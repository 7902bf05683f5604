"""Input files of an experiment, packed for the machine on which it runs."""

import io
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from moefabric.config.section import Section
from moefabric.core.errors import SpecError
from moefabric.runtime.atomic_file import output_error

_DIGITS = 16
"""Hexadecimal digits of a file's digest."""


def input_paths(section: Section, place: str = "") -> Iterator[tuple[str, Path]]:
    """Yield place and path of each input file that a section names."""
    for name in type(section).model_fields:
        yield from _paths(getattr(section, name), f"{place}.{name}" if place else name)


def _paths(value: object, place: str) -> Iterator[tuple[str, Path]]:
    match value:
        case Path():
            yield place, value
        case Section():
            yield from input_paths(value, place)
        case list():
            for number, entry in enumerate(value):
                yield from _paths(entry, f"{place}[{number}]")


class InputFiles:
    """Files and folders as archives, by the digests of their contents.

    Attributes:
        archives: Archives by digest.
    """

    def __init__(self) -> None:
        self.archives: dict[str, bytes] = {}
        self._digests: dict[Path, str] = {}

    def add(self, path: Path) -> tuple[str, str]:
        """Pack a file or a folder.

        Returns:
            Its digest, and its path in a folder into which it is unpacked.

        Raises:
            SpecError: If it can't be read.
        """
        path = path.resolve()
        if path not in self._digests:
            archive = _archive(path)
            digest = sha256(archive).hexdigest()[:_DIGITS]
            self.archives[digest] = archive
            self._digests[path] = digest
        digest = self._digests[path]
        return digest, f"{digest}/{path.name}"


def _archive(path: Path) -> bytes:
    """Return an archive of a file or a folder; equal contents give equal archives."""
    stream = io.BytesIO()
    try:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        with ZipFile(stream, "w", ZIP_DEFLATED) as archive:
            for file in files:  # entries without a date
                archive.writestr(ZipInfo(str(file.relative_to(path.parent))), file.read_bytes())
    except OSError as error:
        raise SpecError([(str(path), error.strerror or str(error))]) from error
    return stream.getvalue()


def unpack(archives: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of archives into a folder, each archive into a folder of its digest.

    Raises:
        OutputError: If there is no room.
    """
    for digest, contents in archives.items():
        place = folder / digest
        try:
            place.mkdir()
            with ZipFile(io.BytesIO(contents)) as archive:
                archive.extractall(place)
        except OSError as error:
            raise output_error(place, error) from error
