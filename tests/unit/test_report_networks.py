"""The pictures of what was wired: every server, switch and link of each fabric, once for fabrics that are alike."""

import re
from typing import Any

import pytest

from moefabric.experiment.results import wiring
from moefabric.report import networks, reading, table
from moefabric.topology import Eps, EpsKind, Fabric
from tests.fabrics import fabric


def drawn(*wired: Fabric) -> list[networks.Network]:
    run: dict[str, Any] = {
        "results": [
            {"fabric": f"f{i}", "policy": "eps", "wiring": wiring(each)} for i, each in enumerate(wired)
        ]
    }
    return networks.networks(reading.results(run))


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
def test_every_switch_and_link_is_drawn(wired: Fabric, switches: int, wires: int, fibres: int) -> None:
    [network] = drawn(wired)
    assert count(network.picture, "machine") == 4
    assert (count(network.picture, "switch"), count(network.picture, "wire")) == (switches, wires)
    assert (count(network.picture, "fibre"), count(network.picture, "optics")) == (fibres, min(1, fibres))


def test_an_oversubscription_stands_beside_the_uplinks() -> None:
    [network] = drawn(fabric(0, 8, eps=Eps(2, 2, 3.0)))
    assert ">3:1<" in network.picture
    assert network.kind == "leaf-spine of 2 leaves and 2 spines, 3:1 oversubscribed"


def test_fabrics_that_are_wired_alike_share_a_picture() -> None:
    assert [network.name for network in drawn(fabric(3, 1), fabric(3, 1), fabric(0, 4))] == ["f0, f1", "f2"]


def test_the_table_names_the_kind_of_each_fabric() -> None:
    wired = [fabric(0, 8, eps=Eps(2, 2, 3.0)), fabric(3, 1)]
    results = [{"fabric": f"f{i}", "policy": "eps", "wiring": wiring(each)} for i, each in enumerate(wired)]
    said = table.text({"experiment": "kinds", "results": results}).splitlines()
    assert "f0: leaf-spine of 2 leaves and 2 spines, 3:1 oversubscribed" in said
    assert "f1: OCS of 12 ports + one leaf, non-blocking" in said


def test_what_finds_no_room_is_counted() -> None:
    [network] = drawn(fabric(0, 1, regions=(16, 16, 16)))
    assert count(network.picture, "machine") == 16
    assert "and 32 more" in network.picture


def test_a_run_that_tells_nothing_of_its_wiring_has_no_picture() -> None:
    run = {"results": [{"fabric": "old", "policy": "eps", "wiring": {"servers": 4}}]}
    assert networks.networks(reading.results(run)) == []
