"""Clocks and losses of real hosts, as a run's verdict and manifest show them."""

from types import SimpleNamespace
from typing import Any

import pytest

from moefabric.agents.fleet.clocks import ClockOffset
from moefabric.core.errors import LostBytesError, MachineLossError
from moefabric.execution.real_hosts import RealHosts
from moefabric.results.model import Verdict
from moefabric.workload.iterations.substitution import NoBackupError

MS = 1_000_000


def hosts(first: ClockOffset, last: ClockOffset) -> RealHosts:
    fact = {"address": "192.0.2.7", "python": "3.11.2"}
    clocks = SimpleNamespace(first={"s1": first}, offsets={"s1": last})
    fleet: Any = SimpleNamespace(facts={"s1": fact}, clocks=clocks)
    return RealHosts(fleet, {"s1": "gpu2"})


@pytest.mark.parametrize(
    ("last", "iterations", "error"),
    [
        (ClockOffset(0, MS), 1, ""),
        (ClockOffset(0, 6 * MS), 1, "3.00 ms only, 3.0% of a collective"),
        (ClockOffset(4 * MS, MS), 1, "4.50 ms only, 4.5% of a collective"),
        (ClockOffset(4 * MS, MS), 4, ""),
    ],
    ids=["certain", "uncertain", "drifts", "drifts-slowly"],
)
def test_clock_is_a_reason_if_its_error_is_a_large_part_of_a_collective(
    last: ClockOffset, iterations: int, error: str
) -> None:
    real = hosts(ClockOffset(0, MS), last)
    findings = list(real.findings([100 * MS] * iterations, iterations))
    if not error:
        assert findings == []
        return
    [finding] = findings
    assert finding.text.startswith(f"the clock of s1 (gpu2) is known to {error}")


def test_lost_host_is_in_reasons_and_manifest_with_its_reason() -> None:
    real = hosts(ClockOffset(5, 10), ClockOffset(7, 8))
    real.failure_logged("detected", "server", ["s0"], "an emulated server")
    real.failure_logged("detected", "server", ["s1"], "its SSH connection is lost")
    real.failure_logged("detected", "server", ["s1"], "seen again")
    [finding] = real.findings([], 0)
    assert (finding.verdict, finding.text) == (Verdict.DEGRADED, "s1 (gpu2) was lost")
    assert real.cause(NoBackupError("no backup")) == "its SSH connection is lost"
    [record] = real.records("lab")
    assert (record.fabric, record.server, record.host) == ("lab", "s1", "gpu2")
    assert record.lost == "its SSH connection is lost"
    assert (record.clock_offset_s, record.clock_uncertainty_s) == (5e-9, 5e-9)
    assert record.clock_drift_s == 2e-9


def test_emulated_servers_of_other_machines_have_clocks_of_their_own() -> None:
    fleet = hosts(ClockOffset(0, MS), ClockOffset(0, 6 * MS)).fleet
    placed = RealHosts(fleet, {}, machines={"s1": "m1"})
    [finding] = placed.findings([100 * MS], 1)
    assert finding.text.startswith("the clock of s1 (m1) is known to 3.00 ms only")
    assert [record.host for record in placed.records("lab")] == ["m1"]


def test_loss_of_an_emulated_server_stays_an_error_of_the_experiment() -> None:
    emulated = RealHosts(hosts(ClockOffset(), ClockOffset()).fleet, {})
    assert emulated.fatal_errors == (LostBytesError, MachineLossError)
    assert NoBackupError in hosts(ClockOffset(), ClockOffset()).fatal_errors
