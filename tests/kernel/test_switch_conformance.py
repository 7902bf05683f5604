"""A selection of Ryu's switch tests on the project's switch, compared with docs/conformance.md."""

from pathlib import Path

import pytest

from tests.support.openflow_conformance import BPF, bench
from tests.support.openflow_verdicts import FAIL, cases, parse_page
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "conformance.md"
FILES = (
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
def test_verdicts_of_ryus_tester_are_as_documented(tmp_path: Path) -> None:
    with bench(BPF, 2, tmp_path) as switches:
        switches.rate_s = RATE_S
        verdicts = switches.run(FILES, deadline_s=90)
    documented = parse_page(PAGE.read_text(), 0)
    expected = {case: documented[case] for file in FILES for case in cases(file)}
    assert {case: verdict.text for case, verdict in verdicts.items()} == expected
    assert sum(text == "pass" for text in expected.values()) == PASSING
    assert FAIL not in {text.split(":")[0] for text in expected.values()}
