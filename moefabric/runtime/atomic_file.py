"""Files of results, which appear whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

from moefabric.core.errors import OutputError, path_fault

_FULL: Final = (ENOSPC, EDQUOT, EFBIG)


def output_error(path: Path, error: OSError) -> OutputError:
    """Return the error of a file that can't be written, with the remedy if there is one."""
    folder = path.parent
    is_missing = isinstance(error, FileNotFoundError) and not folder.exists()
    return OutputError(f"{path}: {no_folder(folder, folder) if is_missing else write_fault(error)}")


def no_folder(missing: Path, needed: Path) -> str:
    """Return that a folder is missing on the way to the one that is needed, with the remedy."""
    return f"there is no folder {missing}: make it by `mkdir -p {needed}`"


def write_fault(error: OSError) -> str:
    """Return what a system call said, with the remedy if there is no room for a file."""
    remedy = "; free some room, or write to another file system" if error.errno in _FULL else ""
    return f"{path_fault(error)}{remedy}"


@contextmanager
def replaced_file(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file in the folder of `path`, and rename it to `path` at the end.

    After an exception, and after a crash at any instant, `path` is what it was before. A path that
    is no regular file, such as `/dev/stdout` or a pipe, is written in place.

    Args:
        path: The file that appears or is replaced. A link's target is replaced, not the link.
        durable: Whether the bytes are on the disk before the name is (fsync(2)).

    Yields:
        The temporary file.

    Raises:
        OutputError: If the file can't be written.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                yield stream
            return
        target = path.resolve()
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            _sync_folder(target.parent)
    except OSError as error:
        raise output_error(path, error) from error


def write_whole(path: Path, contents: str | bytes, *, durable: bool = True) -> None:
    """Replace the contents of a file in one step.

    Args:
        contents: Bytes, or text that is written as UTF-8.
        durable: Whether the bytes are on the disk before the name is (fsync(2)).

    Raises:
        OutputError: If the file can't be written; it is what it was before.
    """
    with replaced_file(path, durable=durable) as file:
        file.write(contents.encode() if isinstance(contents, str) else contents)


def append_whole(file: FileIO, data: bytes) -> None:
    """Append bytes to a file that is opened for appending and unbuffered, or leave it as it was.

    Raises:
        OSError: If there is no room.
    """
    end = file.seek(0, os.SEEK_END)
    unwritten = memoryview(data)
    try:
        while unwritten:  # a write stops where the file system or a limit ends
            unwritten = unwritten[file.write(unwritten) :]
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise


def append_lines(path: Path, lines: str) -> None:
    """Append lines to a file, whole or not at all.

    Raises:
        OutputError: If the file can't be written; it is what it was before.
    """
    try:
        with path.open("ab", buffering=0) as file:
            append_whole(file, lines.encode())
    except OSError as error:
        raise output_error(path, error) from error


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
