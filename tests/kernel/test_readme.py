"""The commands of the README succeed, in order."""

from pathlib import Path

import pytest

from tests.support.pages import failures_of_page

pytestmark = [pytest.mark.ovs, pytest.mark.slow]
EXPERIMENTS = "moefabric (run|train|trace) |paper-scale"
"""`make test-all` predicts them; other tests run some, and read traces."""


def test_commands_of_the_readme_succeed(tmp_path: Path) -> None:
    assert failures_of_page("README.md", tmp_path, skipped=EXPERIMENTS) == []
