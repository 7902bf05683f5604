"""Backup servers: wired to the EPS alone, reached by everyone, and no part of a job until they stand in."""

from pathlib import Path

import pytest

from controller.planner.mixnet import MIXNET
from emulator.plan import plan
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix, Placement
from moefabric.errors import SpecError
from moefabric.experiment.sending import planned_flows
from moefabric.experiment.testbed import ways
from moefabric.experiment.workload import workload_on
from moefabric.fluid import predict_regions
from moefabric.management import Management
from moefabric.spec import load
from moefabric.topology import Fabric, Scale

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def fabric() -> Fabric:
    """Four servers of two optical and two electrical NICs, and s4 that stands by."""
    spec = load.experiment(EXAMPLES / "failures.yaml")
    return spec.wired(spec.fabrics[0], "lab", Scale(1000))


def test_backup_servers_come_last_and_have_no_light(fabric: Fabric) -> None:
    assert (fabric.working, fabric.backups) == (("s0", "s1", "s2", "s3"), ("s4",))
    assert fabric.groups == {"r0": ("s0", "s1", "s2", "s3")}
    assert [str(nic) for nic in fabric.nics("s4")] == ["s4/e0", "s4/e1"]
    assert fabric.leaf_of("s4") == fabric.leaf_of("s0"), "one leaf holds all, unless the EPS says otherwise"


def test_a_backup_server_is_plugged_into_the_eps_alone(fabric: Fabric) -> None:
    made = plan(fabric, Management("198.18.0.0/24"))
    assert [link.name for link in made.links if link.name.startswith("s4/")] == [
        "s4/host", "s4/e0", "s4/e1", "s4/management",
    ]  # fmt: skip
    assert [ocs.name for ocs in made.ocses] == ["ocs0"]
    assert len(made.ocses[0].plugged) == 8


def test_everyone_is_joined_to_a_backup_server_before_it_is_needed(fabric: Fabric) -> None:
    joined = {(way.src, way.dst, way.path) for way in ways(fabric)}
    assert {each for each in joined if "s4" in each[:2]} == {
        (a, b, path)
        for server in fabric.working
        for a, b in ((server, "s4"), ("s4", server))
        for path in ("e0", "e1")
    }
    assert len(joined) == 4 * 3 * 4 + 4 * 2 * 2


def test_a_job_starts_without_its_backup_servers(fabric: Fabric) -> None:
    spec = load.experiment(EXAMPLES / "failures.yaml")
    [placement] = workload_on(spec, fabric, EXAMPLES).placements
    assert placement == Placement(("s0", "s1", "s2", "s3"), 8, 8)


def test_a_stand_ins_traffic_is_its_regions(fabric: Fabric) -> None:
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
    assert set(predict_regions(fabric, lit, flows, groups)) == {"r0"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param(["wiring.backup={servers: 0}"], "wiring.backup.servers: must be at least 1, 0 given", id="none"),
        pytest.param(
            ["fabrics=[{name: topoopt, patched: 2, policy: topoopt}]", "failures=[]"],
            "fabrics[0]: backup servers are joined by the EPS only: give each server an electrical NIC", id="no-eps",
        ),
        pytest.param(
            ["wiring.backup={servers: 157}"],
            "wiring.regions: 161 servers are more than the 160 that one fabric can have", id="too-many",
        ),
    ],
)  # fmt: skip
def test_backup_servers_that_can_not_be_are_told(settings: list[str], said: str) -> None:
    with pytest.raises(SpecError) as told:
        load.experiment(EXAMPLES / "failures.yaml", settings)
    assert said in [f"{place.split(': ')[-1]}: {what}" for place, what in told.value.faults]


@pytest.mark.parametrize(
    ("homes", "experts"),
    [((0, 1, 2), 4), ((0, 1, 2, 3), 4), ((0, 0, 1, 1), 6)],
    ids=["few", "nowhere", "uneven"],
)
def test_ranks_live_somewhere_each_with_its_experts(homes: tuple[int, ...], experts: int) -> None:
    with pytest.raises(ValueError, match="ranks"):
        Placement(("s0", "s1", "s2"), 4, experts, homes)
