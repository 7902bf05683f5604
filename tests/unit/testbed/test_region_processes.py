"""How many processes the controllers and OCSes of a fabric have."""

from dataclasses import replace

import pytest

from moefabric.core.errors import UnsupportedError
from moefabric.core.ocs import OcsControl
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.linux.processes import ProcessRole
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.testbed.fabric_processes import fabric_processes
from tests.support.fabrics import fabric

VARIABLE = "MOEFABRIC_REGION_PROCESSES"


@pytest.mark.parametrize(
    ("regions", "chosen", "processes"),
    [(1, "", 0), (8, "", 0), (9, "", 4), (64, "", 4), (64, "64", 64), (64, "0", 0), (2, "1", 1)],
)
def test_regions_of_large_fabrics_share_a_process_for_each_core(
    monkeypatch: pytest.MonkeyPatch, regions: int, chosen: str, processes: int
) -> None:
    monkeypatch.setattr(lifecycle, "usable_cores", lambda: 4)
    monkeypatch.setenv(VARIABLE, chosen)
    assert lifecycle.region_processes(regions) == processes


def test_number_of_processes_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "few")
    with pytest.raises(UnsupportedError, match=f"{VARIABLE} is a number of processes, not 'few'"):
        lifecycle.region_processes(64)


@pytest.mark.parametrize(
    ("optical", "processes", "expected"),
    [
        (1, 0, {"ocs0": "0", "ocs1": "1", "ocs2": "2"}),
        (1, 2, {"ocs0-ocs1": "01", "ocs2": "2"}),
        (0, 2, {}),
    ],
)
def test_process_serves_the_switches_of_its_regions(
    optical: int, processes: int, expected: dict[str, str]
) -> None:
    run = RunDirectory.of_fabric("test")
    wiring = FabricWiring(
        fabric(optical, 1, regions=(2, 2, 2)),
        ManagementNetwork("198.18.7.0/24"),
        region_processes=processes,
    )
    specs = [one for one in fabric_processes(wiring, run) if one.role is ProcessRole.OCS]
    assert [spec.name for spec in specs] == [*expected]
    for spec in specs:
        sockets = [str(run.path / f"ocs{number}.handoff") for number in expected[spec.name]]
        assert spec.argv[: len(sockets) + 1] == ("--socket", *sockets)
        assert spec.node == f"ocs{expected[spec.name][0]}"


def test_real_switch_has_no_process() -> None:
    wired = fabric(2, 1, regions=(2, 2))
    first, second = wired.regions
    assert first.ocs is not None
    real = replace(first.ocs, control=OcsControl(address="192.0.2.10"))
    wired = replace(wired, regions=(replace(first, ocs=real), second))
    wiring = FabricWiring(wired, ManagementNetwork("198.18.7.0/24"))
    specs = fabric_processes(wiring, RunDirectory.of_fabric("test"))
    assert [spec.name for spec in specs if spec.role is ProcessRole.OCS] == ["ocs1"]
