"""Every command of the README and of the guides succeeds, in order."""

from pathlib import Path

import pytest

from tests.support.pages import PAGES, failures_of_page


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_succeeds(page: str, tmp_path: Path, base: str) -> None:
    assert failures_of_page(page, tmp_path) == []
