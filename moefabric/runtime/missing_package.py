"""The error of a package that is optional and not installed."""

import sys

from moefabric.core.errors import UnsupportedError


def missing_package(what: str, *packages: str) -> UnsupportedError:
    """Return the error of something that needs packages which this Python doesn't have."""
    remedy = f"{sys.executable} -m pip install {' '.join(packages)}"
    return UnsupportedError(f"{what} needs {' and '.join(packages)}: {remedy}")
