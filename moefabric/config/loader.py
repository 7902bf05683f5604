"""Loads fabric and experiment files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moefabric.config.input_file import read_yaml
from moefabric.config.validation import validate
from moefabric.core.errors import SpecError

if TYPE_CHECKING:
    from moefabric.config.experiment import ExperimentSpec
    from moefabric.config.fabric import FabricSpec


def load_fabric(path: Path, settings: Sequence[str] = ()) -> "FabricSpec":
    """Return the fabric that a file describes.

    Args:
        path: the YAML file.
        settings: changes such as `nics.optical=2`.

    Raises:
        SpecError: with all faults of the file.
    """
    from moefabric.config.fabric import FabricSpec

    document = read_yaml(path, settings)
    if "experiment" in document and "fabric" not in document:
        message = "describes an experiment, which `moefabric run` takes; a fabric is needed"
        raise SpecError([(str(path), message)])
    return validate(FabricSpec, document, path)


def load_experiment(path: Path, settings: Sequence[str] = ()) -> "ExperimentSpec":
    """Return the experiment that a file describes.

    Args:
        path: the YAML file.
        settings: changes such as `training.iterations=1`.

    Raises:
        SpecError: with all faults of the file.
    """
    from moefabric.config.experiment import ExperimentSpec

    document = read_yaml(path, settings)
    if "fabric" in document and "experiment" not in document:
        message = "describes a fabric, which `moefabric up` takes; an experiment is needed"
        raise SpecError([(str(path), message)])
    return validate(ExperimentSpec, document, path)
