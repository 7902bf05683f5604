"""HTTP server of metrics for Prometheus."""

import secrets
import socket
from contextlib import suppress
from ipaddress import ip_address

import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from moefabric.ui.dashboard.access import Guard

_MOST_CONNECTIONS = 16


def application(registry: CollectorRegistry, host: str, token: str | None) -> ASGIApp:
    """Return the ASGI application of `/metrics`.

    Args:
        registry: The metrics.
        host: Address that the server listens on.
        token: The token that requests need; None if they need none.
    """

    def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = Starlette(routes=[Route("/metrics", metrics)])
    return Guard(app, token or secrets.token_hex(), host, lambda _path: token is not None)


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach a listener at this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(registry: CollectorRegistry, listener: socket.socket, token: str | None) -> None:
    """Serve metrics until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        application(registry, listener.getsockname()[0], token),
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=75,  # more than Prometheus' usual interval
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=1 << 14,
        ws="none",
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
