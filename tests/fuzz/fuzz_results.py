"""Journals and results of runs."""

import os
from pathlib import Path

from moefabric.core.errors import SpecError
from moefabric.results.journal import read_journal
from moefabric.results.model import read_run
from tests.support.fuzzing import FuzzTarget

_FILE = Path(f"/dev/shm/moefabric-fuzz-{os.getpid()}.jsonl")


def read_lines(data: bytes) -> None:
    """Read the input as a journal, and sum what it holds."""
    _FILE.write_bytes(data)
    try:
        read_journal(_FILE)
    except SpecError:
        pass  # what the reader documents
    finally:
        _FILE.unlink()


def read_result(data: bytes) -> None:
    """Read the input as the JSON of a run."""
    _FILE.write_bytes(data)
    try:
        read_run(_FILE)
    except SpecError:
        pass  # what the reader documents
    finally:
        _FILE.unlink()


TARGETS = (FuzzTarget("journal", read_lines), FuzzTarget("json-results", read_result))
