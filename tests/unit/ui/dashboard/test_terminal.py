"""`moefabric top`: what the picture of a fabric says, and what it leaves out."""

import time
from typing import Any

import pytest

from moefabric.core.errors import FabricError
from moefabric.report.table import text
from moefabric.ui.dashboard import terminal
from moefabric.ui.dashboard.monitor import FabricMonitor
from tests.support.dashboard_sources import MemorySource, memory_fabric, ring_circuits, run_status
from tests.unit.ui.dashboard.test_monitor import Clock


@pytest.fixture
def source() -> MemorySource:
    return MemorySource(memory_fabric("lab", 16), rate=0.5)


def state_of(source: MemorySource) -> dict[str, Any]:
    clock = Clock()
    monitor, state = FabricMonitor(source, clock, clock), dict[str, Any]()
    for _ in range(2):
        state |= monitor.poll().state
        clock.now += 1
    return state


def test_picture_has_each_server_with_rates_circuits_and_the_run(source: MemorySource) -> None:
    region = source.fabric.regions[0]
    source.light_of["r0"] = ring_circuits(region)
    source.status = run_status(source.fabric)
    shown = text(terminal.view(state_of(source), 100))
    rows = {line.split()[0]: line for line in shown.splitlines() if line[:1] == "s"}
    assert set(rows) >= set(source.fabric.servers)
    assert "b/s" in rows["s0"]
    assert " s1" in rows["s0"]
    assert rows["s15"].split()[1] == "-", "a server without circuits sends nothing by light"
    assert f"iteration {source.status['iteration'] + 1} of" in shown
    assert f"verdict so far {source.status['verdict']}" in shown


def test_failures_and_dark_circuits_stand_out(source: MemorySource) -> None:
    source.failed = [{"kind": "nic", "what": ["s3/o1"]}]
    state = state_of(source)
    state["circuits"] = {"r0": {"lit": [], "dark": ["s0/o0~s1/o0"]}}
    shown = text(terminal.view(state, 100))
    assert "failed: nic s3/o1" in shown
    assert "dark in r0: s0/o0~s1/o0" in shown
    assert "no run uses it" in shown


def test_low_terminal_shows_the_busiest_servers_in_their_order(source: MemorySource) -> None:
    state = state_of(source)
    busiest = sorted(terminal._servers(state), key=lambda row: -row[1])
    shown = text(terminal.view(state, 12)).splitlines()
    names = [line.split()[0] for line in shown if line[:1] == "s" and line[1:2].isdigit()]
    assert names
    assert set(names) == {row[0] for row in busiest[: len(names)]}
    assert names == sorted(names, key=lambda name: int(name[1:]))
    assert any("servers with less traffic" in line for line in shown)


def test_events_have_their_kinds(source: MemorySource) -> None:
    fault = {"at": 0.0, "ocs": "ocs0", "text": "1: reject"}
    state = state_of(source)
    state["events"] = [fault | {"kind": kind} for kind in ("fault", "fault-cleared")]
    lines = text(terminal.view(state, 100)).splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["00:00:00", "ocs0", "fault", "1:", "reject"],
        ["00:00:00", "ocs0", "fault-cleared", "1:", "reject"],
    ]


def test_watch_ends_with_the_fabric(
    source: MemorySource, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    terminal.print_once(source)
    assert "s15" in capsys.readouterr().out
    source.is_down = True
    with pytest.raises(FabricError, match="gone"):
        terminal.print_once(source)
