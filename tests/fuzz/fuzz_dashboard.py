"""Requests to the dashboard, with fabrics in memory.

An input is a line with method and path, lines of headers, and behind an empty line the body. The
word TOKEN in a header is the dashboard's token.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from moefabric.ui.dashboard.saved_runs import SavedRuns
from moefabric.ui.dashboard.server import Dashboard, application
from tests.support.dashboard_sources import MemorySource, MemorySources, memory_fabric
from tests.support.fuzzing import FuzzTarget

_FOLDER = tempfile.TemporaryDirectory(prefix="moefabric-fuzz-")
_LOOP = asyncio.new_event_loop()
_INPUTS_PER_DASHBOARD = 1000


class _Requests:
    """Sends requests to a dashboard, which is replaced from time to time."""

    def __init__(self) -> None:
        self._count = 0
        self._renew()

    def _renew(self) -> None:
        sources = MemorySources(MemorySource(memory_fabric("small", 4)))
        self._dashboard = Dashboard(sources, SavedRuns(Path(_FOLDER.name)), lambda: b"")
        self._app = application(self._dashboard, "127.0.0.1")

    def read(self, data: bytes) -> None:
        """Answer the input; no answer may be an error of the server."""
        self._count += 1
        if self._count % _INPUTS_PER_DASHBOARD == 0:
            self._renew()
        head, _, body = data.partition(b"\n\n")
        line, *headers = head.split(b"\n")
        method, _, target = line.decode("latin-1").partition(" ")
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method.upper(),
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [self._header(header) for header in headers],
        }
        statuses = _LOOP.run_until_complete(self._answer(scope, body))
        assert statuses
        assert statuses[0] in {503, *range(200, 500)}

    def _header(self, line: bytes) -> tuple[bytes, bytes]:
        name, _, value = line.replace(b"TOKEN", self._dashboard.token.encode()).partition(b":")
        return name.strip().lower(), value.strip()

    async def _answer(self, scope: dict[str, Any], body: bytes) -> list[int]:
        messages = [{"type": "http.request", "body": body}]
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self._app(scope, receive, send)
        return statuses


TARGETS = (FuzzTarget("dashboard", _Requests().read),)
