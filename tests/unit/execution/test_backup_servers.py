"""Backup servers: connected to the EPS alone, and no part of a job until a loss."""

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix, Placement
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.sending.flow_pacing import planned_flows
from moefabric.planner.sending.task_flows import region_by_server
from moefabric.prediction.workload_loader import workload_on
from moefabric.runtime.run_directory import ManagementNetwork
from moefabric.simulator.fluid import predict_regions
from moefabric.testbed.testbed import data_paths
from tests.support.paths import EXAMPLES


@pytest.fixture
def fabric() -> Fabric:
    """Four servers of two optical and two electrical NICs, and s4 that stands by."""
    spec = load_experiment(EXAMPLES / "failures.yaml")
    return spec.build_fabric(spec.fabrics[0], "lab", Scale(1000))


def test_backup_servers_come_last_and_have_no_circuits(fabric: Fabric) -> None:
    assert (fabric.primary_servers, fabric.backup_servers) == (("s0", "s1", "s2", "s3"), ("s4",))
    assert fabric.ep_groups == {"r0": ("s0", "s1", "s2", "s3")}
    assert [str(nic) for nic in fabric.nics("s4")] == ["s4/e0", "s4/e1"]
    assert fabric.eps_wiring.leaf_of("s4") == fabric.eps_wiring.leaf_of("s0"), (
        "one leaf holds all, unless the EPS says otherwise"
    )


def test_backup_server_is_connected_to_the_eps_alone(fabric: Fabric) -> None:
    wired = plan_fabric(fabric, ManagementNetwork("198.18.0.0/24"))
    assert [link.name for link in wired.links if link.name.startswith("s4/")] == [
        "s4/host",
        "s4/e0",
        "s4/e1",
        "s4/management",
    ]
    assert [ocs.name for ocs in wired.ocses] == ["ocs0"]
    assert len(wired.ocses[0].plugged) == 8


def test_every_server_is_connected_to_the_backup_server(fabric: Fabric) -> None:
    joined = {(way.src, way.dst, way.path) for way in data_paths(fabric)}
    assert {each for each in joined if "s4" in each[:2]} == {
        (a, b, path)
        for server in fabric.primary_servers
        for a, b in ((server, "s4"), ("s4", server))
        for path in ("e0", "e1")
    }
    assert len(joined) == 4 * 3 * 4 + 4 * 2 * 2


def test_job_starts_without_its_backup_servers(fabric: Fabric) -> None:
    spec = load_experiment(EXAMPLES / "failures.yaml")
    [placement] = workload_on(spec, fabric, EXAMPLES).placements
    assert placement == Placement(("s0", "s1", "s2", "s3"), 8, 8)


def test_traffic_of_a_backup_belongs_to_its_region(fabric: Fabric) -> None:
    groups = {"r0": ("s0", "s1", "s2", "s4")}
    rows = [[0.0, 9e6, 0.0, 9e6], [0.0] * 4, [0.0] * 4, [0.0, 9e6, 0.0, 0.0]]
    demand = DemandMatrix(groups["r0"], rows)
    lit = CircuitSet.of(["s0/o0~s1/o0"])
    flows = planned_flows(fabric, MIXNET, demand, lit, groups)
    assert {(f.src, f.dst): f.path[0] for f in flows} == {
        ("s0", "s1"): "o",
        ("s0", "s4"): "e",
        ("s4", "s1"): "e",
    }
    assert set(predict_regions(fabric, lit, flows, region_by_server(groups))) == {"r0"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param(
            ["wiring.backup={servers: 0}"],
            "wiring.backup.servers: must be at least 1, 0 given",
            id="none",
        ),
        pytest.param(
            ["fabrics=[{name: topoopt, patch_panel_nics: 2, policy: topoopt}]", "failures=[]"],
            "fabrics[0]: backup servers are connected by the EPS only: "
            "give each server an electrical NIC",
            id="no-eps",
        ),
        pytest.param(
            ["wiring.backup={servers: 257}"],
            "wiring.backup.servers: must be at most 256, 257 given",
            id="too-many",
        ),
    ],
)
def test_impossible_backup_servers_are_reported(settings: list[str], said: str) -> None:
    with pytest.raises(SpecError) as error:
        load_experiment(EXAMPLES / "failures.yaml", settings)
    assert said in [f"{place.split(': ')[-1]}: {what}" for place, what in error.value.errors]


@pytest.mark.parametrize(
    ("homes", "experts"),
    [((0, 1, 2), 4), ((0, 1, 2, 3), 4), ((0, 0, 1, 1), 6)],
    ids=["few", "nowhere", "uneven"],
)
def test_placement_of_ranks_is_checked(homes: tuple[int, ...], experts: int) -> None:
    with pytest.raises(ValueError, match="ranks"):
        Placement(("s0", "s1", "s2"), 4, experts, homes)
