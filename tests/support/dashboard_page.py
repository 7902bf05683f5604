"""The dashboard's server in this process and Chromium, for tests and for docs/dashboard.png.

`python -m tests.support.dashboard_page docs/dashboard.png` makes the picture again.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moefabric.ui.dashboard.fabric_source import RunningFabrics
from moefabric.ui.dashboard.saved_runs import SavedRuns
from moefabric.ui.dashboard.server import Dashboard, address, http_server, listening_socket
from tests.support.dashboard_sources import (
    MemorySource,
    MemorySources,
    memory_fabric,
    ring_circuits,
    run_status,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM: Final = Path("/usr/bin/chromium")
_ARGUMENTS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass(frozen=True)
class Served:
    """A dashboard that is served."""

    dashboard: Dashboard
    url: str

    @property
    def link(self) -> str:
        return f"{self.url}/#token={self.dashboard.token}"


@contextmanager
def served(sources: RunningFabrics, folder: Path) -> Iterator[Served]:
    """Serve a dashboard on a free port of loopback."""
    with listening_socket("127.0.0.1", 0) as listener:
        dashboard = Dashboard(sources, SavedRuns(folder), lambda: b"")
        server = http_server(dashboard, "127.0.0.1")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Served(dashboard, address(listener))
        finally:
            server.handle_exit(signal.SIGTERM, None)
            thread.join()


@contextmanager
def chromium() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


def busy_source(servers: int) -> MemorySource:
    """Return a fabric in memory during a run, with a ring of light in each region."""
    fabric = memory_fabric("lab", servers)
    source = MemorySource(fabric, rate=0.8)
    source.status = run_status(fabric)
    for region in fabric.regions:
        source.light_of[region.name] = ring_circuits(region)
    return source


def opened(browser: "Browser", link: str, **options: Any) -> "Page":
    """Return the page when it shows a fabric."""
    page = browser.new_page(**options)
    page.goto(link)
    page.wait_for_selector("#live:not([hidden]) .circuit, #live:not([hidden]) .region")
    return page


def main(picture: Path) -> None:
    """Write the picture of a fabric of 8 servers during a run."""
    source = busy_source(8)
    source.fault("nic", ["s1/e0"])
    with served(MemorySources(source), Path("out")) as dashboard, chromium() as browser:
        page = opened(browser, dashboard.link, viewport={"width": 1440, "height": 1100})
        page.wait_for_timeout(20_000)  # until the chart of rates has a past
        page.screenshot(path=picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
