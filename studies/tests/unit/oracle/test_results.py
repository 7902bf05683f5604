"""Figures derived from the comparison: orders, speed-ups, errors; the page and its pictures."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from moefabric_studies.oracle.page import pictures, text
from moefabric_studies.oracle.results import (
    FORWARDING,
    LONGER,
    PACED,
    CaseResult,
    OracleResults,
    OracleTables,
    PacketResult,
    SharingResult,
    ordered_pairs,
    quantile,
    ratios,
)

CUBIC = "CUBIC, 100 packets"


def case(
    fabric: str,
    predicted_s: float,
    ends_s: tuple[float | None, ...],
    *,
    group: str = "prototype",
    demand: str = "0.0 dispatch",
) -> CaseResult:
    """Return a case with one transport."""
    packets = PacketResult(
        transport=CUBIC, ends_s=ends_s, sent_packets=100, lost_packets=1, wall_s=1.0
    )
    own = (predicted_s,) * len(ends_s)
    return CaseResult(
        group=group, demand=demand, fabric=fabric, factor=0.1, bytes=1e6, predicted_s=predicted_s,
        max_min_s=own, paced_s=own, alone_s=own, packets=(packets,),
    )  # fmt: skip


EPS = case("eps", 1.0, (1.25, 0.5))
MIXNET = case("mixnet", 1.4, (1.5, 0.7))
SPILL = case("mixnet-spill", 1.01, (1.6, 1.0))
STUCK = case("static", 2.0, (1.0, None))


def test_error_is_negative_where_the_model_is_optimistic() -> None:
    assert EPS.error(CUBIC) == pytest.approx(-0.2)
    assert list(EPS.flow_errors(CUBIC)) == pytest.approx([-0.2, 1.0])


def test_paced_flows_are_compared_with_paced_ones() -> None:
    packets = EPS.packets[0].model_copy(update={"transport": PACED})
    paced = EPS.model_copy(update={"packets": (packets,), "paced_s": (1.5, 0.4)})
    assert list(paced.flow_errors(PACED)) == pytest.approx([0.2, -0.2])


def test_case_with_an_endless_flow_has_no_error_but_errors_of_other_flows() -> None:
    assert STUCK.error(CUBIC) is None
    assert list(STUCK.flow_errors(CUBIC)) == pytest.approx([1.0])


def test_order_is_asked_of_the_same_demand_and_clear_differences_only() -> None:
    other = case("eps", 9.0, (9.0,), demand="0.0 combine")
    found = [(a.fabric, b.fabric, held) for a, b, held in ordered_pairs([EPS, SPILL, other], CUBIC)]
    assert found == []


def test_order_fails_where_the_faster_fabric_ends_later() -> None:
    pairs = ordered_pairs([MIXNET, SPILL, STUCK], CUBIC)
    assert [(a.fabric, b.fabric, held) for a, b, held in pairs] == [
        ("mixnet-spill", "mixnet", False),
        ("mixnet", "static", True),
        ("mixnet-spill", "static", True),
    ]


def test_speed_up_of_model_and_transport() -> None:
    assert ratios([EPS, MIXNET], "mixnet", "eps", None) == pytest.approx([1.4])
    assert ratios([EPS, MIXNET], "mixnet", "eps", CUBIC) == pytest.approx([1.2])
    assert ratios([EPS, STUCK], "static", "eps", CUBIC) == []


def test_quantile_is_one_of_the_values() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.05, 0.5, 0.95)] == [1.0, 2.0, 3.0]


@pytest.fixture
def results() -> OracleResults:
    """Return results with a case of every group."""
    others = [
        case("eps", 1.0, (1.1,), group=group)
        for group in ("training", "fabrics", "first-all-to-all", LONGER, FORWARDING)
    ]
    sharing = SharingResult(name="pipeline, eps", steps=2, max_min_s=(1.0,), simgrid_s=(1.0,))
    return OracleResults(
        ns3="3.44", simgrid="3.32", wall_s=60.0, cases=(EPS, MIXNET, SPILL, *others),
        sharing=(sharing,),
    )  # fmt: skip


def test_page_states_reversed_orders_and_signed_errors(results: OracleResults) -> None:
    page = text(results.tables)
    row = f"| {CUBIC} | 2 | 1 | mixnet-spill and mixnet 1 |"
    assert row in page.splitlines()
    assert page.count("| eps, model 1000.00 ms | 1.25 |") == 1
    assert page.count("| eps, model 1000.00 ms | 1.10 |") == 1
    assert "| LogGOPSim | uniform8 | 300.6 µs | 296.3 µs | -1.4 % |" in page


def test_page_sets_forwarding_fabrics_beside_the_eps(results: OracleResults) -> None:
    cases = []
    for demand, last_s, forwarded in (("3.1 dispatch", 1.5, 2e4), ("7.2 dispatch", 1.7, 5e4)):
        cases.append(case("eps", 1.0, (1.25,), group=FORWARDING, demand=demand))
        multihop = case("multihop", 1.02, (last_s,), group=FORWARDING, demand=demand)
        update = {"forwarded_bytes": forwarded, "max_min_s": (1.1,)}
        cases.append(multihop.model_copy(update=update))
    kept = tuple(case for case in results.cases if case.group != FORWARDING)
    lines = text(results.model_copy(update={"cases": (*kept, *cases)}).tables).splitlines()
    relative = "| 1.02 (1.02 to 1.02) | 1.10 (1.10 to 1.10) | 1.28 (1.20 to 1.36) |"
    assert f"| `multihop` | 2.0 to 5.0 % {relative}" in lines
    assert "| `multihop` | 1.57 (1.47 to 1.67), 1.00 % lost |" in lines
    assert f"| {CUBIC} | 2 | 2 | none |" in lines


def test_page_refers_to_every_picture_and_pictures_are_xml(results: OracleResults) -> None:
    page = text(results.tables)
    drawn = pictures(results.tables)
    assert drawn
    for name, picture in drawn.items():
        assert f"({name})" in page
        assert ET.fromstring(picture).tag.endswith("svg")


def test_page_and_pictures_are_drawn_again_from_stored_tables(
    results: OracleResults, tmp_path: Path
) -> None:
    tables = results.tables
    tables.write(tmp_path / "truth.csv")
    stored = OracleTables.read(tmp_path / "truth.csv")
    assert text(stored) == text(tables)
    assert pictures(stored) == pictures(tables)
    assert "ns-3 3.44 and SimGrid 3.32 took 1 min" in text(stored)
    assert f"| {CUBIC} | 11 | -36.9 % | -9.1 % | +100.0 % | 64 % |" in text(stored)


def test_results_survive_a_file(results: OracleResults, tmp_path: Path) -> None:
    file = tmp_path / "oracle.json"
    file.write_text(results.model_dump_json())
    assert OracleResults.model_validate_json(file.read_text()) == results
