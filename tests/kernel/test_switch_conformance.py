"""Ryu's own switch tester against a switch of ours: of every kind of description some, held against docs/conformance.md."""

from pathlib import Path

import pytest

from tests.openflow_conformance import BPF, bench
from tests.openflow_verdicts import FAIL, cases, listed

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
TRIED = (
    "action/00_OUTPUT.json",
    "action/17_PUSH_VLAN.json",
    "action/25_SET_FIELD/03_ETH_DST.json",
    "action/25_SET_FIELD/08_IP_DSCP_IPv4.json",
    "action/25_SET_FIELD/12_IPV4_DST.json",
    "group/00_ALL.json",
    "match/00_IN_PORT.json",
    "match/02_METADATA.json",
    "match/03_ETH_DST_Mask.json",
    "match/05_ETH_TYPE.json",
    "match/06_VLAN_VID.json",
    "match/08_IP_DSCP_IPv4.json",
    "match/11_IPV4_SRC_Mask.json",
    "match/13_TCP_SRC_IPv4.json",
    "match/13_TCP_SRC_IPv6.json",
    "match/23_ARP_TPA.json",
    "meter/01_DROP_00_KBPS_00_1M.json",
)
PASSING = 62
RATE_S = 4


@pytest.mark.slow
def test_ryus_tester_finds_what_is_listed(tmp_path: Path) -> None:
    with bench(BPF, 2, tmp_path) as switches:
        switches.rate_s = RATE_S
        found = switches.judged(TRIED, deadline_s=90)
    written = listed(PAGE.read_text(), 0)
    expected = {case: written[case] for file in TRIED for case in cases(file)}
    assert {case: verdict.said for case, verdict in found.items()} == expected
    assert sum(said == "pass" for said in expected.values()) == PASSING
    assert FAIL not in {said.split(":")[0] for said in expected.values()}
