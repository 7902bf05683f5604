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
from moefabric.ui.dashboard.server import server_config

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
    app = application(registry, listener.getsockname()[0], token)
    config = server_config(app, _MOST_CONNECTIONS, keep_alive_s=75)  # Prometheus asks each minute
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
