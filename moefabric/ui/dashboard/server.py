"""The dashboard's HTTP server: the page, a stream of changes, commands, and saved results."""

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette import responses
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import moefabric.report
from moefabric.config.validation import validate
from moefabric.core.errors import FabricError, MoefabricError, SpecError
from moefabric.ui.dashboard.access import REPORT_POLICY, Guard
from moefabric.ui.dashboard.fabric_source import COMMANDS, Change, RunningFabrics
from moefabric.ui.dashboard.hub import Hub, TooManyClientsError
from moefabric.ui.dashboard.limited_http import SharedReading, server_config
from moefabric.ui.dashboard.saved_runs import SavedRuns

STATIC: Final = Path(__file__).parent / "static"
COLOURS: Final = Path(moefabric.report.__file__).parent / "colours.css"
_MOST_BODY: Final = 1 << 16
_SEND_S: Final = 10.0
"""Time in which a page must accept a message; slower pages are dropped."""
_METRICS_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
"""Prometheus' text format."""


class Dashboard:
    """A dashboard: its fabrics and results, and the replies to requests that end at once.

    Attributes:
        hub: Distributes changes.
        metrics: Reads metrics for Prometheus.
        token: Token of all requests for data and commands.

    Args:
        sources: The running fabrics.
        saved_runs: Saved results.
        metrics: Returns metrics for Prometheus.
    """

    def __init__(
        self, sources: RunningFabrics, saved_runs: SavedRuns, metrics: Callable[[], bytes]
    ) -> None:
        self.hub, self.token = Hub(sources), secrets.token_urlsafe(32)
        self._saved_runs = saved_runs
        self.metrics, self._rendering = SharedReading(metrics), asyncio.Lock()

    async def command(self, request: Request) -> responses.Response:
        """Change light or failures of a fabric."""
        name, fabric = request.path_params["command"], request.path_params["fabric"]
        if name not in COMMANDS:
            raise HTTPException(404, f"{name} is not one of {', '.join(COMMANDS)}")
        change = validate(Change, await _document(request))
        reply = await asyncio.to_thread(self._run, fabric, name, change)
        self.hub.wake()
        return responses.JSONResponse(reply)

    def _run(self, fabric: str, command: str, change: Change) -> object:
        sources = self.hub.sources
        if fabric not in sources.names():
            raise FabricError(f"{fabric} is not up")
        with closing(sources.open(fabric)) as source:
            return COMMANDS[command](source, change)

    async def stream(self, request: Request) -> responses.Response:
        """Stream the changes of the fabric that the query names."""
        return _Stream(self.hub, request.query_params.get("fabric", ""))

    async def results(self, _request: Request) -> responses.Response:
        """List the saved results."""
        return responses.JSONResponse(await asyncio.to_thread(self._saved_runs.entries))

    async def render(self, request: Request) -> responses.Response:
        """Render a saved result, and say where the page is."""
        file = (await _document(request)).get("file")
        if not isinstance(file, str):
            raise SpecError([("file", "the name of a result is needed")])
        async with self._rendering:
            key = await asyncio.to_thread(self._saved_runs.add_page, file)
        return responses.JSONResponse({"page": f"reports/{key}"})

    async def scrape(self, _request: Request) -> responses.Response:
        """Return metrics of the running fabrics."""
        return responses.Response(await self.metrics.value(), media_type=_METRICS_TYPE)

    async def colours(self, _request: Request) -> responses.Response:
        """Return the colours of reports, which are those of the page, too."""
        return responses.FileResponse(COLOURS)

    async def report(self, request: Request) -> responses.Response:
        """Return a rendered page, for a frame. Its key can't be guessed; a frame sends no token."""
        page = self._saved_runs.pages.get(request.path_params["key"])
        if page is None:
            raise HTTPException(404, "no such page: choose the results again")
        headers = {"Content-Security-Policy": REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN"}
        return responses.HTMLResponse(page, headers=headers)


def application(dashboard: Dashboard, host: str) -> ASGIApp:
    """Return the ASGI application. `/metrics` and paths below `/api` need the token."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        dashboard.hub.start()
        yield
        dashboard.hub.stop()

    app = Starlette(
        routes=[
            Route("/api/stream", dashboard.stream),
            Route("/api/fabrics/{fabric}/{command}", dashboard.command, methods=["POST"]),
            Route("/api/results", dashboard.results),
            Route("/api/results/page", dashboard.render, methods=["POST"]),
            Route("/reports/{key}", dashboard.report),
            Route("/metrics", dashboard.scrape),
            Route("/colours.css", dashboard.colours),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        exception_handlers={MoefabricError: _refuse, HTTPException: _refuse},
        lifespan=lifespan,
    )
    return Guard(app, dashboard.token, host, lambda path: path.startswith(("/api", "/metrics")))


async def _refuse(_request: Request, error: Exception) -> responses.Response:
    """Return the text of an error."""
    if isinstance(error, HTTPException):
        return responses.JSONResponse({"error": error.detail}, error.status_code)
    if isinstance(error, TooManyClientsError):
        return responses.JSONResponse({"error": str(error)}, 503)
    return responses.JSONResponse(
        {"error": str(error)}, 400 if isinstance(error, SpecError) else 409
    )


class _Stream(responses.StreamingResponse):
    """Streams the changes of a fabric until the page leaves or is too slow, or the server ends."""

    def __init__(self, hub: Hub, fabric: str) -> None:
        self._hub, self._subscription = hub, hub.subscribe(fabric)
        super().__init__(self._subscription.messages(), media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI 3)."""

        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), _SEND_S)

        with suppress(TimeoutError):
            try:
                await super().__call__(scope, receive, send_in_time)
            finally:
                self._hub.unsubscribe(self._subscription)


async def _document(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        HTTPException: If the body is too large or no JSON object.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Content-Type: application/json is needed")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BODY:
            raise HTTPException(413, f"the body is larger than {_MOST_BODY} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the body is not JSON") from error
    if not isinstance(document, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return document


class _Server(uvicorn.Server):
    """Ends all streams on a signal, which would otherwise go on until their pages leave."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._hub.stop()


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    Raises:
        FabricError: If the address is in use or not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, reuse_port=False)
    except OSError as error:
        message = f"--listen {host}:{port}: {error.strerror or error}; choose another address"
        raise FabricError(message) from error


def http_server(dashboard: Dashboard, host: str) -> uvicorn.Server:
    """Return the server of a dashboard; its `run` takes a listening socket on `host`."""
    config = server_config(application(dashboard, host), dashboard.token, keep_alive_s=5)
    return _Server(config, dashboard.hub)


def serve(
    dashboard: Dashboard, listener: socket.socket, on_start: Callable[[str], None] = print
) -> None:
    """Serve the dashboard until Ctrl-C or SIGTERM.

    Args:
        dashboard: What is shown.
        listener: The listening socket.
        on_start: Called with the link of the page, which has the token.
    """
    on_start(f"{address(listener)}/#token={dashboard.token}")
    with suppress(KeyboardInterrupt):
        http_server(dashboard, listener.getsockname()[0]).run(sockets=[listener])


def address(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
