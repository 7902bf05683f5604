"""The file with the measured speed of a machine."""

import os
from pathlib import Path

import pytest

from moefabric.core.errors import MoefabricError
from moefabric.core.machine_speed import MachineSpeed
from moefabric.runtime.measured_speed import machine_speed, store_speed

MEASURED = MachineSpeed(31e-6, 12e-6, 400.0, 0.7e-3, 50e-6)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "machine.json"
    monkeypatch.setenv("MOEFABRIC_MACHINE", str(path))
    return path


def test_stored_speed_is_that_of_the_machine(file: Path) -> None:
    assert machine_speed() == MachineSpeed(), "none was measured"
    assert store_speed(MEASURED) == file
    assert machine_speed() == MEASURED


def test_speed_of_another_number_of_cores_is_not_used(file: Path) -> None:
    store_speed(MEASURED)
    text = file.read_text().replace(f'"cores": {os.cpu_count()}', '"cores": 4096')
    file.write_text(text)
    assert machine_speed() == MachineSpeed()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cores": %d, "frame_s": "fast"}'])
def test_damaged_file_is_named_with_the_remedy(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text % os.cpu_count() if "%d" in text else text)
    with pytest.raises(MoefabricError, match=r"machine\.json.*repeat `moefabric calibrate"):
        machine_speed()


def test_file_is_in_the_state_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOEFABRIC_MACHINE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert store_speed(MEASURED) == tmp_path / "moefabric" / "machine.json"
