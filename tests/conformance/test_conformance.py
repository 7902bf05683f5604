"""All of Ryu's switch tests on both kinds of switches: `make conformance` writes what came of them to docs/conformance.md."""

from pathlib import Path

import pytest

from emulator import ovs
from tests.openflow_conformance import BPF, OVS, RATE_S, TRIES, bench
from tests.openflow_verdicts import FAIL, Verdicts, files, page, summary

pytestmark = [pytest.mark.kernel, pytest.mark.ovs, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
PAIRS = {BPF: 5, OVS: 8}
HOW = f"""Every test of Ryu's switch tester (`ryu.tests.switch.tester`, ryu 4.34, its 144 descriptions for OpenFlow 1.3) on two kinds of switches, each wired to
another of its kind as the tester wants: the switches of this project (tc-BPF datapath, `emulator.switch`), and Open vSwitch {{version}} in user space, as the
emulator starts it. Written by `make conformance`.

*Pass*: packets came out as the tester expects. *Not supported*: the switch refused a rule, group or meter with the OpenFlow error that is shown, and
nothing was changed. *Fail*: anything else. Rates are measured for {RATE_S} s instead of 30. What failed was tried again alone, {TRIES} times in all."""


@pytest.mark.timeout(3600)
def test_every_switch_is_judged_by_every_description(tmp_path: Path) -> None:
    found = list[tuple[str, Verdicts]]()
    for kind in (BPF, OVS):
        (folder := tmp_path / str(len(found))).mkdir()
        with bench(kind, PAIRS[kind], folder) as switches:
            verdicts = switches.judged(files(), deadline_s=900)
        print(f"\n{kind}: {summary(verdicts)}")
        found.append((kind, verdicts))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(found, HOW.format(version=ovs.version())))
    ours = found[0][1]
    assert [f"{case}: {verdict}" for case, verdict in ours.items() if verdict.result == FAIL] == []
