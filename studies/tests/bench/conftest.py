"""Studies' benches keep their figures as those of the testbed do."""

from tests.bench.conftest import pytest_addoption

__all__ = ["pytest_addoption"]
