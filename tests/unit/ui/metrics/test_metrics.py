"""Metrics: names and values from what the parts of a fabric report, dashboards, and access."""

import asyncio
import json
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from moefabric.agents.fleet.channel import read_statistics
from moefabric.controller.service.statistics import BOUNDS_S, ControllerStatistics
from moefabric.core.nic import Nic
from moefabric.core.port_counts import PortReading
from moefabric.emulator.ocs.events import EventBus, OcsEventKind
from moefabric.emulator.ocs.fabric_link import OcsStatistics
from moefabric.runtime.processes import process_usage
from moefabric.runtime.run_status import IterationStatus, RunStatus
from moefabric.ui.metrics import parts
from moefabric.ui.metrics.collector import add_samples, application, is_loopback
from tests.support.metric_samples import Scrape
from tests.support.paths import REPOSITORY

DASHBOARD = REPOSITORY / "packaging/grafana-dashboard.json"
NAME = re.compile(r"moefabric_[a-z_]+")
AGENT: dict[str, Any] = {
    **dict.fromkeys(("bytes_sent", "bytes_received", "bytes_forwarded"), 7),
    **dict.fromkeys(("corrupt", "strays", "faults"), 0),
    "connections": [{}, {}],
    "from": [{}],
    "armed": [3],
}
PORTS = [("tuned", 3), ("blocked", None), ("tuned", 1), ("failed", None)]
OCS = {
    "ports": [{"state": state, "partner": partner} for state, partner in PORTS],
    "faults": [],
    "power": False,
    "changes": 2,
    "refusals": 1,
    "dark_s": 0.05,
}


class Sample(Collector):
    """Metrics of a fabric with all parts."""

    def collect(self) -> list[Metric]:
        statistics = ControllerStatistics()
        statistics.count_request("/light", 200)
        statistics.count_reconfiguration({"settle_s": 0.02, "total_s": 9.0})
        state = {
            "ready": True,
            "switches": ["s0"],
            "circuits": ["a"],
            "dark": [],
            "rules": {"s0": 4},
            "lost_light": 1,
        }
        nics = [Nic.parse("s0/o0"), Nic.parse("s0/e0")]
        reading = PortReading(np.arange(8).reshape(2, 4), np.arange(8).reshape(2, 4))
        queue = {"s0/e0": {"packets": 3, "bytes": 900, "drops": 1, "marks": 2}}
        usage = process_usage(os.getpid())
        assert usage is not None
        families: dict[str, Metric] = {}
        for samples in (
            [({}, {"fabric_up": 1}), ({"part": "nics"}, {"scrape_success": 1})],
            parts.nic_samples(nics, reading),
            parts.queue_samples(queue),
            parts.ocs_samples("ocs0", OCS),
            parts.controller_samples("r0", statistics.to_json() | state),
            parts.controller_samples("eps", None),
            parts.agent_samples(["s0", "s1"], {"s0": AGENT}),
            parts.run_samples(_run_status()),
            parts.process_samples({"": {"fabric": usage}}),
        ):
            add_samples(families, samples, fabric="lab")
        return list(families.values())


def _run_status() -> RunStatus:
    last = IterationStatus(
        iteration=2,
        measured_s=1.5,
        predicted_s=1.4,
        exposed_comm_s=0.5,
        bytes=9,
        bytes_by_light=6,
        bytes_by_eps=3,
    )
    return RunStatus(
        run_id="ab",
        experiment="small",
        fabric="mixnet",
        policy="mixnet",
        pid=1,
        started="2026-01-01T00:00:00+00:00",
        iteration=3,
        iterations=4,
        verdict="degraded",
        done=[last],
    )


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("nic_receive_bytes_total", {"server": "s0", "nic": "s0/o0"}, 1),
        ("ocs_output_bytes_total", {"nic": "s0/o0"}, 3),
        ("port_dropped_packets_total", {"port": "s0/e0"}, 1),
        ("port_marked_packets_total", {"port": "s0/e0"}, 2),
        ("ocs_ports", {"ocs": "ocs0", "state": "tuned"}, 2),
        ("ocs_cross_connects", {"ocs": "ocs0"}, 1),
        ("ocs_faults", {"ocs": "ocs0"}, 1),
        ("ocs_dark_seconds_total", {}, 0.05),
        ("controller_ready", {"controller": "r0"}, 1),
        ("controller_up", {"controller": "eps"}, 0),
        ("controller_requests_total", {"path": "/light", "status": "200"}, 1),
        ("controller_reconfiguration_seconds_bucket", {"phase": "settle", "le": "0.025"}, 1),
        ("controller_reconfiguration_seconds_bucket", {"phase": "settle", "le": "0.01"}, 0),
        ("controller_reconfiguration_seconds_bucket", {"phase": "total", "le": "2.5"}, 0),
        ("controller_reconfiguration_seconds_bucket", {"phase": "total", "le": "+Inf"}, 1),
        ("controller_reconfiguration_seconds_sum", {"phase": "total"}, 9),
        ("switch_rules", {"switch": "s0"}, 4),
        ("agent_connections", {"server": "s0", "direction": "out"}, 2),
        ("agent_up", {"server": "s1"}, 0),
        ("run_verdict", {"verdict": "degraded"}, 1),
        ("run_verdict", {"verdict": "pass"}, 0),
        ("run_measured_seconds", {}, 1.5),
    ],
)
def test_sample_has_the_reported_value(name: str, labels: dict[str, str], value: float) -> None:
    scrape = Scrape(generate_latest(Sample()).decode())
    assert scrape.value(name, fabric="lab", **labels) == value


def test_names_follow_the_conventions() -> None:
    """See https://prometheus.io/docs/practices/naming/."""
    families = list(Sample().collect())
    assert families
    for family in families:
        assert NAME.fullmatch(family.name)
        assert not re.search(r"_(ms|us|ns|kb|mb|bits|minutes|percent)(_|$)", family.name)
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert "fabric" in sample.labels


def test_dashboard_queries_existing_metrics_and_labels() -> None:
    """Its queries name each metric with labels that it has."""
    labels = {
        sample.name: {*sample.labels, "le"}
        for family in Sample().collect()
        for sample in family.samples
    }
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        selectors = re.findall(r"(moefabric_\w+)\{([^}]*)\}", query)
        assert [name for name, _ in selectors] == NAME.findall(query)
        for name, matchers in selectors:
            assert set(re.findall(r"(\w+)=~?\"", matchers)) <= labels[name], query


def ask(app: Any, host: str = "127.0.0.1:9464", authorization: str = "") -> tuple[int, bytes]:
    """Send `GET /metrics` to an ASGI application."""
    sent: list[dict[str, Any]] = []
    headers = [(b"host", host.encode()), (b"authorization", authorization.encode())]
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app({**scope, "query_string": b"", "root_path": ""}, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def test_exporter_needs_the_token_unless_only_this_machine_reaches_it() -> None:
    closed = application(Sample(), "192.0.2.1", "secret")
    assert ask(closed)[0] == 401
    assert ask(closed, authorization="Bearer wrong")[0] == 401
    assert ask(closed, authorization="Bearer secret")[0] == 200
    status, body = ask(application(Sample(), "127.0.0.1", None))
    assert (status, b"moefabric_fabric_up" in body) == (200, True)
    assert ask(application(Sample(), "127.0.0.1", None), host="rebound.example")[0] == 403


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_agents_that_are_silent_or_gone_are_left_out(tmp_path: Path) -> None:
    replies = {"s0": b'{"id": 1, "ok": true, "corrupt": 0}\n', "s1": b"", "s2": b"nonsense\n"}
    paths = {server: tmp_path / server for server in (*replies, "s3")}
    listeners = []
    for server, reply in replies.items():
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(paths[server]))
        listener.listen()
        listeners.append((listener, reply))

    def answer() -> None:
        for listener, reply in listeners:
            channel, _ = listener.accept()
            channel.send(reply)
            open_channels.append(channel)

    open_channels: list[socket.socket] = []
    thread = threading.Thread(target=answer)
    thread.start()
    statistics = read_statistics(paths, timeout_s=1.0)
    thread.join()
    for channel in (*open_channels, *(listener for listener, _ in listeners)):
        channel.close()
    assert statistics == {"s0": {"id": 1, "ok": True, "corrupt": 0}}


def test_dark_time_lasts_from_change_to_light() -> None:
    instants = iter([100, 150, 200, 1000, 1100])
    events = EventBus(lambda: next(instants))
    statistics = OcsStatistics(events)
    events.publish(OcsEventKind.CHANGED, made=((1, 4), (2, 5)))
    events.publish(OcsEventKind.SETTLED, made=((1, 4),))
    events.publish(OcsEventKind.CHANGED, made=((3, 6),), parted=((2, 5),))
    events.publish(OcsEventKind.SETTLED, made=((3, 6),))
    events.publish(OcsEventKind.REFUSED)
    assert (statistics.changes, statistics.refusals, statistics.dark_ns) == (2, 1, 50 + 800)


def test_controller_counts_phases_in_classes() -> None:
    statistics = ControllerStatistics()
    for seconds in (0.0005, 0.0006, 3.0):
        statistics.count_reconfiguration({"plan_s": seconds})
    classes = statistics.to_json()["phases"]["plan_s"]["classes"]
    assert len(classes) == len(BOUNDS_S) + 1
    assert (classes[0], classes[1], classes[-1]) == (1, 1, 1)


def test_usage_of_an_ended_process_is_unknown() -> None:
    assert process_usage(2**22 + 1) is None
