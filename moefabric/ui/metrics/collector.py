"""Reads all metrics of running fabrics anew for each scrape."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from moefabric.api.fabric_view import FabricReader
from moefabric.api.lab import Lab
from moefabric.api.running_fabrics import running_fabrics
from moefabric.core.errors import ControlError, MoefabricError
from moefabric.core.port_counts import counted_nics
from moefabric.ui.metrics import parts
from moefabric.ui.metrics.metric_set import MetricSet

_REPLY_S = 1.0
"""Time for one controller, and for all agents together."""
_PROCESS_ERRORS = (MoefabricError, OSError, KeyError, ValueError)
"""Errors of parts that end, or restart, during a scrape."""


class FabricCollector(Collector):
    """Metrics of one fabric, or of all that run.

    Args:
        only: Name of the fabric; None for all.
    """

    def __init__(self, only: str | None = None) -> None:
        self._only = only

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration reads no fabric."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Read the fabrics."""
        started_s, metrics = time.perf_counter(), MetricSet()
        running = running_fabrics()
        for name in [self._only] if self._only else running:
            metrics.gauge("fabric_up", "Whether the fabric runs.", name in running, fabric=name)
            if name in running:
                _add_fabric(metrics, Lab(name))
        duration_s = time.perf_counter() - started_s
        metrics.gauge("scrape_seconds", "Time to read all metrics.", duration_s)
        return metrics


def _add_fabric(metrics: MetricSet, lab: Lab) -> None:
    with closing(lab.reader(_REPLY_S)) as reader:
        for part, add in _PARTS.items():
            try:
                add(metrics, lab, reader)
                success = True
            except _PROCESS_ERRORS:
                success = False
            text = "Whether a part of the fabric could be read."
            metrics.gauge("scrape_success", text, success, fabric=lab.name, part=part)


def _add_nics(metrics: MetricSet, lab: Lab, reader: FabricReader) -> None:
    parts.add_nics(metrics, lab.name, counted_nics(lab.fabric), reader.ports())


def _add_queues(metrics: MetricSet, lab: Lab, reader: FabricReader) -> None:
    parts.add_queues(metrics, lab.name, reader.queues())


def _add_ocs(metrics: MetricSet, lab: Lab, _reader: FabricReader) -> None:
    for region in lab.fabric.regions:
        if region.ocs is not None:
            parts.add_ocs(metrics, lab.name, region.ocs.name, lab.ocs(region.ocs.name))


def _add_controllers(metrics: MetricSet, lab: Lab, reader: FabricReader) -> None:
    for region in reader.controllers:
        try:
            statistics = reader.ask(region, lambda client: client.statistics())
        except ControlError:
            statistics = None
        parts.add_controller(metrics, lab.name, region.name if region else "eps", statistics)


def _add_agents(metrics: MetricSet, lab: Lab, reader: FabricReader) -> None:
    statistics = reader.agents()
    for server in lab.servers:
        parts.add_agent(metrics, lab.name, server, statistics.get(server))


def _add_run(metrics: MetricSet, lab: Lab, reader: FabricReader) -> None:
    parts.add_run(metrics, lab.name, reader.run_status())


def _add_processes(metrics: MetricSet, lab: Lab, reader: FabricReader) -> None:
    for machine, usage in reader.processes().items():
        parts.add_processes(metrics, lab.name, usage, machine)


def _add_machines(metrics: MetricSet, lab: Lab, reader: FabricReader) -> None:
    for machine, clock in reader.machines().items():
        parts.add_machine(metrics, lab.name, machine, clock)


_PARTS: Final[Mapping[str, Callable[[MetricSet, Lab, FabricReader], None]]] = {
    "nics": _add_nics,
    "queues": _add_queues,
    "ocs": _add_ocs,
    "controllers": _add_controllers,
    "agents": _add_agents,
    "run": _add_run,
    "processes": _add_processes,
    "machines": _add_machines,
}
