"""Reads all metrics of running fabrics anew for each scrape, and serves them for Prometheus."""

import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from typing import Any, Final

import uvicorn
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from moefabric import Lab, MoefabricError
from moefabric.api.fabric_view import FabricReader
from moefabric.api.running_fabrics import running_fabrics
from moefabric.core.port_counts import counted_nics
from moefabric.ui.dashboard.access import Guard, parsed_address
from moefabric.ui.dashboard.limited_http import SharedReading, server_config
from moefabric.ui.metrics import parts

PREFIX: Final = "moefabric_"
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

    def collect(self) -> Iterable[Metric]:
        """Read the fabrics."""
        started_s, running = time.perf_counter(), running_fabrics()
        families: dict[str, Metric] = {}
        for name in [self._only] if self._only else running:
            add_samples(families, [({}, {"fabric_up": name in running})], fabric=name)
            if name in running:
                _add_fabric(families, Lab(name))
        duration_s = time.perf_counter() - started_s
        add_samples(families, [({}, {"scrape_seconds": duration_s})])
        return families.values()


def add_samples(families: dict[str, Metric], samples: parts.Samples, **common: str) -> None:
    """Add samples, which have some labels in common, to families of metrics by name."""
    for labels, values in samples:
        names, texts = [*common, *labels], [*common.values(), *labels.values()]
        for name, value in values.items():
            arguments = value if isinstance(value, tuple) else (value,)
            kind: Any = HistogramMetricFamily if isinstance(value, tuple) else GaugeMetricFamily
            if name.endswith("_total"):
                kind = CounterMetricFamily
            if name not in families:
                families[name] = kind(PREFIX + name, parts.TEXTS[name], labels=names)
            kind.add_metric(families[name], texts, *arguments)


def _add_fabric(families: dict[str, Metric], lab: Lab) -> None:
    with closing(lab.reader(_REPLY_S)) as reader:
        for part, samples in _PARTS.items():
            try:
                add_samples(families, samples(lab, reader), fabric=lab.name)
                success = True
            except _PROCESS_ERRORS:
                success = False
            read = {"scrape_success": success}
            add_samples(families, [({"part": part}, read)], fabric=lab.name)


def _ocs_samples(lab: Lab, _reader: FabricReader) -> parts.Samples:
    emulated = (ocs for ocs in lab.fabric.ocses.values() if ocs.control.address is None)
    for ocs in emulated:
        yield from parts.ocs_samples(ocs.name, lab.ocs(ocs.name))


def _controller_samples(_lab: Lab, reader: FabricReader) -> parts.Samples:
    for region in reader.controllers:
        state = reader.controller_state(region)
        name = region.name if region else "eps"
        yield from parts.controller_samples(name, None if "fault" in state else state)


_PARTS: Final[Mapping[str, Callable[[Lab, FabricReader], parts.Samples]]] = {
    "nics": lambda lab, reader: parts.nic_samples(counted_nics(lab.fabric), reader.ports()),
    "queues": lambda _, reader: parts.queue_samples(reader.queues()),
    "ocs": _ocs_samples,
    "controllers": _controller_samples,
    "agents": lambda lab, reader: parts.agent_samples(lab.servers, reader.agents()),
    "run": lambda _, reader: parts.run_samples(reader.run_status()),
    "processes": lambda _, reader: parts.process_samples(reader.processes()),
    "machines": lambda _, reader: parts.machine_samples(reader.machines()),
}


def application(collector: Collector, host: str, token: str | None) -> ASGIApp:
    """Return the ASGI application of `/metrics`.

    Args:
        collector: The metrics.
        host: Address that the server listens on.
        token: The token that requests need; None if they need none.
    """
    reading = SharedReading(lambda: generate_latest(collector))

    async def metrics(_request: Request) -> Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return Response(await reading.value(), headers=headers)

    app = Starlette(routes=[Route("/metrics", metrics)])
    return Guard(app, token or secrets.token_hex(), host, lambda _path: token is not None)


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach a listener at this address."""
    address = parsed_address(host)
    return host == "localhost" if address is None else address.is_loopback


def serve(collector: Collector, listener: socket.socket, token: str | None) -> None:
    """Serve metrics until Ctrl-C or SIGTERM."""
    app = application(collector, listener.getsockname()[0], token)
    config = server_config(app, token or "", keep_alive_s=75)  # Prometheus asks each minute
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
