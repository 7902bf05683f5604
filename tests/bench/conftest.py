"""Benches of both folders may keep their figures: `--store FILE`."""

import pytest

from tests.bench import recording


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the recorder once, whichever folders are named."""
    if not pluginmanager.has_plugin(recording.__name__):
        pluginmanager.register(recording, recording.__name__)
