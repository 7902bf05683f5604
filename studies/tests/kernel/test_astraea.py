"""Astraea's policy on sockets, and as a transport."""

from pathlib import Path

from moefabric_studies.systems.astraea.decisions import Actor
from moefabric_studies.systems.astraea.policy import governed

from moefabric.config.plugins import transport_named
from moefabric.testbed.testbed import ready_transport
from tests.kernel.tcp_flow import Flow

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def test_policy_moves_the_windows_of_flows() -> None:
    with governed(Actor.load()) as (name, times):
        flow = Flow(name)
        windows: set[int] = set()
        while len(windows) < 4:
            flow.send()
            windows.add(flow.window())
        assert min(windows) >= 4
        assert times.work_s
        flow.close()


def test_transport_is_ready_while_a_run_needs_it() -> None:
    with ready_transport(transport_named("astraea")) as name:
        assert name in AVAILABLE.read_text().split()
        assert name.startswith("astraea")
    assert name not in AVAILABLE.read_text().split()
