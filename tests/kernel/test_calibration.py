"""Calibration on the real crossbar: a few moves of light, and the dark time that a stream of frames saw."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from controller.southbound.crossconnects import Moves
from controller.southbound.drivers import device, place
from emulator import lifecycle
from emulator.processes import Role
from moefabric.cli import main
from moefabric.experiment.calibration import NAME, calibrate, settles
from moefabric.experiment.programs import processes
from moefabric.management import RunDir
from tests.kernel.optical_bench import missing_for_kernel_tests

_LACKS = missing_for_kernel_tests() or ("" if shutil.which("mnexec") else "lacks mininet")
pytestmark = [pytest.mark.kernel, pytest.mark.skipif(bool(_LACKS), reason=_LACKS)]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))


@pytest.mark.usefixtures("runs")
def test_a_few_moves_are_as_dark_as_they_were_asked_to_be() -> None:
    words = ["--settle", "5ms,20ms", "--moves", "20", "--spacing", "200us", "--json"]
    done = CliRunner().invoke(main, ["calibrate", "ocs", *words])
    assert done.exit_code == 0, done.output
    seen = json.loads(done.output)
    assert [each["asked_s"] for each in seen] == [0.005, 0.02]
    for each in seen:
        assert each["moves"] == 20
        assert each["strays"] == 0, "light of one port reached another"
        assert each["uncertain"] < 20, "the machine was too busy for every one of the moves"
        assert each["dark_p50_s"] == pytest.approx(each["asked_s"], abs=1e-3)
    assert lifecycle.running() == []


@pytest.mark.usefixtures("runs")
def test_a_running_fabric_has_the_light_afterwards_that_it_had_before() -> None:
    fabric = settles([1_000_000])
    wiring = lifecycle.up(fabric, lambda w, r: [one for one in processes(w, r) if one.role is Role.OCS])
    try:
        region = fabric.regions[0]
        assert region.ocs is not None
        switch = device(region.ocs, place(region.ocs.control, wiring.management.ocs(region)))
        assert switch.move(Moves((), ((1, 7), (3, 5), (2, 8)))) is None
        calibrate(wiring, RunDir.named(NAME), region, 3, 50_000)
        assert switch.joined() == ((1, 7), (2, 8), (3, 5))
        switch.close()
    finally:
        lifecycle.down(NAME)
