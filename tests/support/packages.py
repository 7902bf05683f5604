"""Packages of plug-ins, installed into a folder of their own as a stranger would install them."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.paths import EXAMPLES

POLICY_PACKAGE: Final = EXAMPLES / "plugins" / "best-pairs"
DIALECT_PACKAGE: Final = EXAMPLES / "plugins" / "line-ocs"
_PIP: Final = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")


def install_package(package: Path, folder: Path) -> Path:
    """Install a package with pip; return the folder to put on Python's path."""
    source, site = folder / package.name, folder / "site"
    shutil.copytree(package, source)  # a build leaves files beside the sources
    command = [sys.executable, "-m", "pip", *_PIP, "--target", str(site), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return site
