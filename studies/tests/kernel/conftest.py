"""Kernel tests of studies use the testbed's fixtures."""

from tests.kernel.conftest import home, home_with_fabric, lab, machine, small

__all__ = ["home", "home_with_fabric", "lab", "machine", "small"]
