"""Wiring diagrams: servers, switches and links of each fabric, once for fabrics of one wiring."""

import re

import pytest
from markupsafe import Markup

from moefabric.core.eps import Eps, EpsKind
from moefabric.core.topology import Fabric
from moefabric.report.diagrams import wiring_diagrams
from moefabric.report.summary import summaries
from moefabric.report.table import text
from moefabric.results.model import FabricResult, RunResult
from moefabric.results.verdict.fabric_result import wiring_summary
from tests.support.fabrics import fabric


def run(*fabrics: Fabric) -> RunResult:
    results = [
        FabricResult.model_validate(
            {"fabric": f"f{i}", "policy": "eps", "wiring": wiring_summary(wired)}
        )
        for i, wired in enumerate(fabrics)
    ]
    return RunResult(experiment="kinds", results=results)


def diagrams(*fabrics: Fabric) -> list[tuple[str, str, Markup]]:
    return wiring_diagrams(summaries(run(*fabrics)))


def count(picture: str, class_: str) -> int:
    return len(re.findall(f'class="{class_}"', picture))


@pytest.mark.parametrize(
    ("wired", "switches", "wires", "fibres"),
    [
        pytest.param(fabric(0, 8), 1, 4, 0, id="one-leaf"),
        pytest.param(fabric(0, 8, eps=Eps(2, 2, 3.0)), 4, 4 + 4, 0, id="leaves-and-spines"),
        pytest.param(fabric(0, 8, eps=Eps(4, kind=EpsKind.RAIL)), 8, 32, 0, id="rails"),
        pytest.param(fabric(3, 1), 1, 4, 4, id="optical-switch"),
    ],
)
def test_every_switch_and_link_is_diagrams(
    wired: Fabric, switches: int, wires: int, fibres: int
) -> None:
    [(_, _, picture)] = diagrams(wired)
    assert count(picture, "machine") == 4
    assert (count(picture, "switch"), count(picture, "wire")) == (switches, wires)
    assert (count(picture, "fibre"), count(picture, "optics")) == (fibres, min(1, fibres))


def test_diagram_names_the_oversubscription() -> None:
    [(_, description, picture)] = diagrams(fabric(0, 8, eps=Eps(2, 2, 3.0)))
    assert ">3:1<" in picture
    assert description == "leaf-spine of 2 leaves and 2 spines, 3:1 oversubscribed"


def test_fabrics_of_one_wiring_share_a_diagram() -> None:
    assert [names for names, _, _ in diagrams(fabric(3, 1), fabric(3, 1), fabric(0, 4))] == [
        "f0, f1",
        "f2",
    ]


def test_table_describes_the_wiring_of_each_fabric() -> None:
    lines = text(run(fabric(0, 8, eps=Eps(2, 2, 3.0)), fabric(3, 1))).splitlines()
    assert "f0: leaf-spine of 2 leaves and 2 spines, 3:1 oversubscribed" in lines
    assert "f1: OCS of 12 ports + one leaf, non-blocking" in lines


def test_diagram_counts_servers_without_room() -> None:
    [(_, _, picture)] = diagrams(fabric(0, 1, regions=(16, 16, 16)))
    assert count(picture, "machine") == 16
    assert "and 32 more" in picture


def test_run_without_wiring_has_no_diagram() -> None:
    document = {"results": [{"fabric": "old", "policy": "eps", "wiring": {"servers": 4}}]}
    assert wiring_diagrams(summaries(RunResult.model_validate(document))) == []
