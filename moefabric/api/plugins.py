"""Plug-ins: sections of YAML files, and parts that are found by name.

`docs/guides/plugins.md` lists the groups of entry points and the Protocols of their parts.

Example:
    A section with its own check, read from a file::

        class Sizes(Section):
            rate: Rate
            flows: int = 3

        sizes = validate(Sizes, read_yaml(path, ()), path)
"""

from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.input_file import read_text, read_yaml
from moefabric.config.loader import experiment_of, fabric_of, load_experiment
from moefabric.config.model import InputPath
from moefabric.config.ocs import load_profile
from moefabric.config.plugins import SCHEDULES, STUDIES, load_named_by_file, load_plugin
from moefabric.config.section import (
    ByteSize,
    Document,
    DurationNs,
    InputError,
    Name,
    Rate,
    Section,
    quantity_field,
)
from moefabric.config.validation import validate
from moefabric.runtime.missing_package import missing_package

__all__ = [
    "SCHEDULES", "STUDIES", "ByteSize", "Document", "DurationNs", "ExperimentSpec", "FabricChoice",
    "InputError", "InputPath", "Name", "Rate", "Section", "experiment_of", "fabric_of",
    "load_experiment", "load_named_by_file", "load_plugin", "load_profile", "missing_package",
    "quantity_field",
    "read_text", "read_yaml", "validate",
]  # fmt: skip
