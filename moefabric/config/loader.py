"""Loads fabrics and experiments: from files, and from values of Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moefabric.config.fabric import FabricSpec
from moefabric.config.file_kinds import read_kind
from moefabric.config.input_file import change_keys, document_value, resolved
from moefabric.config.validation import validate

_SERVER_PATHS: Final = ("container.volumes.*.:", "host.identity_file", "host.ssh_config")
_HOST_PATHS: Final = ("hosts.*.identity_file", "hosts.*.ssh_config")
_PATHS: Final = (
    "model.config",
    *_HOST_PATHS,
    *(f"{at}servers.*.{path}" for at in ("", "wiring.") for path in _SERVER_PATHS),
)
"""Places of relative paths in documents, as `resolved` takes them."""

if TYPE_CHECKING:
    from moefabric.config.experiment import ExperimentSpec


def load_fabric(
    path: Path, settings: Sequence[str] = (), changes: Mapping[str, Any] | None = None
) -> FabricSpec:
    """Return the fabric that a file describes.

    Args:
        path: The YAML file.
        settings: Changes such as `nics.optical=2`.
        changes: Changes as values of Python (`moefabric.config.input_file.change_keys`).

    Raises:
        SpecError: With all errors of the file.
    """
    document = read_kind(path, "fabric", settings)
    change_keys(document, changes or {})
    resolve_paths(document, path.parent)
    return validate(FabricSpec, document, path)


def load_experiment(
    path: str | Path,
    settings: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    hosts: str | Path | None = None,
) -> "ExperimentSpec":
    """Return the experiment that a file describes.

    Args:
        path: The YAML file.
        settings: Changes such as `training.iterations=1`.
        changes: Changes as values of Python (`moefabric.config.input_file.change_keys`).
        hosts: A file of real servers, on which all fabrics run.

    Raises:
        SpecError: With all errors of the file.
    """
    from moefabric.config.experiment import ExperimentSpec

    path = Path(path)
    document = read_kind(path, "experiment", settings)
    change_keys(document, changes or {})
    if hosts is not None:
        document["hosts"] = str(Path(hosts).absolute())
        fabrics = document.get("fabrics")
        for fabric in fabrics if isinstance(fabrics, list) else []:
            if isinstance(fabric, dict):
                fabric["hosts"] = True
    resolve_paths(document, path.parent)
    return validate(ExperimentSpec, document, path)


def resolve_paths(document: dict[str, Any], folder: Path, places: Sequence[str] = _PATHS) -> None:
    """Make the paths of model, servers and hosts in a document start at a folder.

    Paths of gating and of programs stay as they are: who reads them knows the folder.

    Args:
        document: Contents of the file, changed in place; wrong values stay as they are.
        folder: Folder of the file.
        places: Places of the paths.

    Raises:
        SpecError: With all errors of a file of hosts that the document names.
    """
    file, folder = document.get("hosts"), folder.absolute()
    for place in places:
        document |= resolved(document, place.split("."), folder)
    if isinstance(file, str) and file and "fabric" not in document:
        from moefabric.config.hosts import hosts_of_file

        document["hosts"] = hosts_of_file(folder / Path(file).expanduser())


def fabric_of(document: Mapping[str, Any]) -> FabricSpec:
    """Return the fabric that values of Python describe; the keys are those of a file.

    Raises:
        SpecError: With all errors of the values.
    """
    return validate(FabricSpec, document_value(document))


def experiment_of(document: Mapping[str, Any]) -> "ExperimentSpec":
    """Return the experiment that values of Python describe; the keys are those of a file.

    Raises:
        SpecError: With all errors of the values.
    """
    from moefabric.config.experiment import ExperimentSpec

    values = document_value(document)
    resolve_paths(values, Path(), _HOST_PATHS)
    return validate(ExperimentSpec, values)
