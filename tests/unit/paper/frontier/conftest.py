"""The study of the smallest region, which takes seconds."""

import pytest

from moefabric.paper.frontier.results import FrontierResults
from moefabric.paper.frontier.study import run_study
from moefabric.runner.progress import PlainProgressReporter
from tests.support.paths import EXAMPLES


@pytest.fixture(scope="session")
def study() -> FrontierResults:
    return run_study(EXAMPLES / "paper", PlainProgressReporter(), sizes=(8,))
