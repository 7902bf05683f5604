"""Experiments and fabrics as YAML, read and validated."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from moefabric.config.input_file import read_yaml
from moefabric.config.loader import load_experiment, load_fabric
from moefabric.core.errors import MoefabricError
from tests.support.fuzzing import FuzzTarget, input_file
from tests.support.paths import EXAMPLES

# What the loaders import takes longer than an input may.
load_experiment(EXAMPLES / "prototype.yaml")
load_fabric(EXAMPLES / "fabric.yaml")


def read_file(read: Callable[[Path], Any], data: bytes) -> None:
    """Read the input as a YAML file."""
    with input_file(data, ".yaml") as file, suppress(MoefabricError):
        read(file)


TARGETS = (
    FuzzTarget("yaml", partial(read_file, read_yaml)),
    FuzzTarget("fabric", partial(read_file, load_fabric)),
    FuzzTarget("experiment", partial(read_file, load_experiment)),
)
