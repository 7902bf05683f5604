"""All of Ryu's switch tests on both kinds of switches; writes docs/conformance.md."""

from pathlib import Path

import pytest

from moefabric.emulator.fabric import ovs
from tests.support.openflow_conformance import BPF, OVS, RATE_S, TRIES, bench
from tests.support.openflow_verdicts import FAIL, Verdicts, files, page, summary
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.kernel, pytest.mark.ovs, pytest.mark.slow]

PAGE = REPOSITORY / "docs" / "conformance.md"
PAIRS = {BPF: 5, OVS: 8}
INTRODUCTION = f"""Every test of Ryu's switch tester (`ryu.tests.switch.tester`, Ryu 4.34, its 144
descriptions for OpenFlow 1.3) on two kinds of switches: the switches of this project (tc-BPF
datapath, `moefabric.emulator.openflow_switch`), and Open vSwitch {{version}} in user space,
configured as the emulator configures it. Each switch under test is wired to a tester of its kind.
`make conformance` writes this page.

*Pass*: the packets were as the tester expects. *Not supported*: the switch refused a flow, group or
meter with the OpenFlow error that is shown, and changed nothing. *Fail*: anything else. Rates are
measured for {RATE_S} s instead of 30. Failed tests were repeated alone, up to {TRIES} times."""


@pytest.mark.timeout(3600)
def test_all_descriptions_on_all_switches(tmp_path: Path) -> None:
    results = list[tuple[str, Verdicts]]()
    for kind in (BPF, OVS):
        (folder := tmp_path / str(len(results))).mkdir()
        with bench(kind, PAIRS[kind], folder) as switches:
            verdicts = switches.run(files(), deadline_s=900)
        print(f"\n{kind}: {summary(verdicts)}")
        results.append((kind, verdicts))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(results, INTRODUCTION.format(version=ovs.version())))
    _, own = results[0]
    assert [f"{case}: {verdict}" for case, verdict in own.items() if verdict.result == FAIL] == []
