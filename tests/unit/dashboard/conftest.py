from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.dashboard_page import CHROMIUM, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("needs Chromium; packaging/setup test installs it")
    with chromium() as started:
        yield started
