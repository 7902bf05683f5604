"""What unit tests share that takes seconds to make."""

from pathlib import Path

import pytest

from moefabric.paper.tables import Paper, predicted


@pytest.fixture(scope="session")
def foreseen() -> Paper:
    """The paper's tables as predicted."""
    return predicted(Path(__file__).parents[2] / "examples/paper")
