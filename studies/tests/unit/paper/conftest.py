"""Predicted tables, which take seconds to compute."""

import pytest
from moefabric_studies.paper.results import PaperResults, predict_tables

from tests.support.paths import EXAMPLES


@pytest.fixture(scope="session")
def predicted() -> PaperResults:
    """The paper's tables as predicted."""
    return predict_tables(EXAMPLES / "paper")
