"""Every command of the README succeeds, in order."""

from pathlib import Path

import pytest

from tests.kernel.fabric_lab import NEEDS
from tests.support.pages import failures_of_page

pytestmark = [*NEEDS, pytest.mark.slow]


def test_every_command_of_the_readme_succeeds(tmp_path: Path) -> None:
    assert failures_of_page("README.md", tmp_path) == []
