"""The file with the measured speed of this machine, which `moefabric calibrate machine` writes."""

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

from moefabric.core.errors import MoefabricError
from moefabric.core.machine_speed import MachineSpeed
from moefabric.runtime.atomic_file import replaced_file

_CORES: Final = "cores"
_FIELDS: Final = fields(MachineSpeed)


def speed_file() -> Path:
    """Return the path of the file: MOEFABRIC_MACHINE, or a file in the user's state folder."""
    if file := os.environ.get("MOEFABRIC_MACHINE"):
        return Path(file)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "moefabric" / "machine.json"


def machine_speed() -> MachineSpeed:
    """Return the measured speed of this machine, or the defaults where none was measured.

    A measurement with another number of cores is not of this machine.

    Raises:
        MoefabricError: If the file is damaged.
    """
    path = speed_file()
    try:
        values = json.loads(path.read_text())
        if values.pop(_CORES) != os.cpu_count():
            return MachineSpeed()
        return MachineSpeed(**{field.name: float(values[field.name]) for field in _FIELDS})
    except FileNotFoundError:
        return MachineSpeed()
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        remedy = "repeat `moefabric calibrate machine`, or remove the file"
        raise MoefabricError(f"{path}: no measured speed ({error!r}): {remedy}") from error


def store_speed(speed: MachineSpeed) -> Path:
    """Write the measured speed of this machine, and return the path of the file.

    Raises:
        OutputError: If the file can't be written.
    """
    path = speed_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as file:
        document = asdict(speed) | {_CORES: os.cpu_count()}
        file.write(json.dumps(document, indent=1).encode() + b"\n")
    return path
