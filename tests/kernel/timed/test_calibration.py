"""Calibration of OCSes on the kernel's crossbar: dark time measured by a stream of frames."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric.controller.southbound.ocs.cross_connects import CrossConnectChange
from moefabric.controller.southbound.ocs.remote_ocs import device_address, make_driver
from moefabric.core.machine_speed import MachineSpeed
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.linux.processes import ProcessRole
from moefabric.runtime.measured_speed import machine_speed
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.scratch_folder import scratch_folder
from moefabric.testbed.fabric_processes import fabric_processes
from moefabric.testbed.ocs_calibration import CALIBRATION_FABRIC, calibrate, calibration_fabric
from moefabric.ui.cli.main import main


@pytest.fixture
def runs(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(short_folder))


@pytest.mark.usefixtures("runs")
def test_measured_dark_time_is_the_configured_one() -> None:
    arguments = ["--settle", "5ms,20ms", "--moves", "20", "--spacing", "200us", "--json"]
    result = CliRunner().invoke(main, ["calibrate", "ocs", *arguments])
    assert result.exit_code == 0, result.output
    calibrations = json.loads(result.output)
    assert [calibration["asked_s"] for calibration in calibrations] == [0.005, 0.02]
    for calibration in calibrations:
        assert calibration["moves"] == 20
        assert calibration["strays"] == 0, "frames came out at a former port"
        assert calibration["uncertain"] < 20, "the machine was too busy for every one of the moves"
        assert calibration["dark_p50_s"] == pytest.approx(calibration["asked_s"], abs=1e-3)
    assert lifecycle.running_fabrics() == []


@pytest.mark.nightly
def test_measured_speed_of_the_machine_decides_the_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEFABRIC_MACHINE", str(tmp_path / "machine.json"))
    with scratch_folder("mf-speed-") as folder:
        monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(folder))
        result = CliRunner().invoke(main, ["calibrate", "machine", "--json"])
        assert result.exit_code == 0, result.output
        assert lifecycle.running_fabrics() == []
    measured = json.loads(result.stdout)
    assert Path(measured["file"]) == tmp_path / "machine.json"
    assert 3e-6 < measured["frame_s"] < 3e-4, "seconds of a core for a frame of 64 KB on a link"
    assert machine_speed() == MachineSpeed(
        **{field.name: measured[field.name] for field in fields(MachineSpeed)}
    )


@pytest.mark.usefixtures("runs")
def test_calibration_restores_the_cross_connects() -> None:
    fabric = calibration_fabric([1_000_000])
    wiring = lifecycle.up(
        fabric, lambda w, r: [p for p in fabric_processes(w, r) if p.role is ProcessRole.OCS]
    )
    try:
        region = fabric.regions[0]
        assert region.ocs is not None
        driver = make_driver(
            region.ocs, device_address(region.ocs.control, wiring.management.ocs_address(region))
        )
        assert driver.apply(CrossConnectChange((), ((1, 7), (3, 5), (2, 8)))) is None
        calibrate(wiring, RunDirectory.of_fabric(CALIBRATION_FABRIC), region, 3, 50_000)
        assert driver.cross_connects() == ((1, 7), (2, 8), (3, 5))
        driver.close()
    finally:
        lifecycle.down(CALIBRATION_FABRIC)
