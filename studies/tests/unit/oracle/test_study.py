"""The study: which case runs under which transport, with simulators that answer at once."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from moefabric_studies.oracle.cases import Case
from moefabric_studies.oracle.processes import SimulatorProcess
from moefabric_studies.oracle.results import FORWARDING
from moefabric_studies.oracle.scenario import Cable, FlowStep, RoutedFlow, Scenario
from moefabric_studies.oracle.study import WARM_BYTES, Study, compare

from moefabric.api.units import Units
from moefabric.core.errors import UnsupportedError
from moefabric.testbed.testbed import WARM_UP_BYTES

ANSWERS = """
import json, sys
for scenario in json.load(sys.stdin):
    transport = scenario.get("transport", {})
    end_s = transport.get("queue_packets", 0) + transport.get("fair_hosts", False) / 2
    end_s += transport.get("warm_bytes", 0) / 2**18
    print(json.dumps({"flows": [{"end_s": end_s + 1.0}] * 2, "wall_s": 0.0}))
"""
ROUTES = ((("s0/o0", "s1/o0"),), (("s0/o1", "s2/o0"), ("s2/o1", "s1/o1")))
FLOWS = (RoutedFlow("s0", "s1", ROUTES[0], 3e6), RoutedFlow("s0", "s1", ROUTES[1], 1e6, tree="r2"))
CABLES = tuple(Cable((min(link), max(link)), 1e9) for route in ROUTES for link in route)
SCENARIO = Scenario("relayed", 9000, CABLES, (FlowStep(FLOWS),))


class Progress:
    """Records progress."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.steps = 0

    def show_message(self, text: str) -> None:
        """Record a message."""
        self.messages.append(text)

    def advance(self, text: str) -> None:
        """Count a step."""
        self.steps += 1


@pytest.fixture
def simulator(tmp_path: Path) -> SimulatorProcess:
    """Return a simulator whose flows end at times that tell the transport."""
    program = tmp_path / "simulator.py"
    program.write_text(ANSWERS)
    return SimulatorProcess("fake", Path(sys.executable), os.fspath(program), "json", "", "'1.0'")


def test_forwarding_also_runs_with_fair_hosts_and_warm_connections_and_its_bytes_are_counted(
    simulator: SimulatorProcess,
) -> None:
    case = Case("prototype", "0.0 dispatch", "eps", 0.1, SCENARIO, 1.0)
    study = Study((case, replace(case, group=FORWARDING), case), (SCENARIO,))
    progress = Progress()
    results = compare(study, simulator, simulator, progress)
    ends = [[packets.last_s for packets in result.packets] for result in results.cases]
    common = [1001.0, 1001.0, 1001.0, 101.0, 101.0]
    assert ends == [common, [*common, 1001.5, 1001.5, 1001.5], common]
    assert results.tables.transports[-1] == "DCTCP, 100 packets"
    assert [packets.transport for packets in results.cases[1].packets[-3:]] == [
        "DCTCP, 1,000 packets, fair hosts",
        "CUBIC, 1,000 packets, warm",
        "DCTCP, 1,000 packets, warm",
    ]
    assert WARM_BYTES == WARM_UP_BYTES
    assert (results.cases[1].bytes, results.cases[1].forwarded_bytes) == (4e6, 1e6)
    assert (results.ns3, results.sharing[0].simgrid_s) == ("1.0", (1.0, 1.0))
    assert progress.steps == 18
    assert progress.messages[1] == "ns-3: 3 all-to-alls, 18 simulations"


def test_missing_simulators_are_named_at_once(simulator: SimulatorProcess) -> None:
    absent = replace(simulator, module="no_such_module", remedy="install it")
    with pytest.raises(UnsupportedError, match=r"fake is not in .*: install it"):
        compare(Study((), ()), simulator, absent, Progress())


def test_simulations_that_have_ended_are_kept_and_not_repeated(
    simulator: SimulatorProcess, tmp_path: Path
) -> None:
    case = Case("prototype", "0.0 dispatch", "eps", 0.1, SCENARIO, 1.0)
    study, units = Study((case,), (SCENARIO,)), Units(tmp_path / "units")
    compare(study, simulator, simulator, Progress(), units)
    assert len(units.results) == len((tmp_path / "units").read_text().splitlines()) == 5
    changed = {name: {**unit, "sent_packets": 77} for name, unit in units.results.items()}
    progress = Progress()
    again = compare(study, simulator, simulator, progress, Units(results=changed))
    assert {one.sent_packets for one in again.cases[0].packets} == {77}
    assert progress.steps == 5
