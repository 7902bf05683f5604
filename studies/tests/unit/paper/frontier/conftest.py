"""The study of the smallest region, which takes seconds."""

import pytest
from moefabric_studies.paper.frontier.results import FrontierResults
from moefabric_studies.paper.frontier.study import run_study

from moefabric.results.progress import PlainProgressReporter
from tests.support.paths import EXAMPLES


@pytest.fixture(scope="session")
def study() -> FrontierResults:
    return run_study(EXAMPLES / "paper", PlainProgressReporter(), sizes=(8,))
