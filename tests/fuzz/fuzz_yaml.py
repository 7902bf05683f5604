"""Experiments and fabrics as YAML."""

import os
from pathlib import Path

from moefabric.config.input_file import read_yaml
from moefabric.core.errors import SpecError
from tests.support.fuzzing import FuzzTarget

_FILE = Path(f"/dev/shm/moefabric-fuzz-{os.getpid()}.yaml")


def read_file(data: bytes) -> None:
    """Read the input as a YAML file."""
    _FILE.write_bytes(data)
    try:
        read_yaml(_FILE)
    except SpecError:
        pass  # what the reader documents
    finally:
        _FILE.unlink()


TARGETS = (FuzzTarget("yaml", read_file),)
