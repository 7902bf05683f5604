"""Loads Debian's Mininet into any Python environment; import this module before Mininet.

Mininet is written in Python, but its helper `mnexec` is not, so that Debian has it and PyPI has
not. Debian's package belongs to the system's interpreter, and other environments don't search its
folder. Only Mininet is loaded from there.
"""

import logging
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final

DEBIAN_FOLDER: Final = "/usr/lib/python3/dist-packages"
"""Folder of Debian's Python packages."""


def mininet_spec() -> ModuleSpec | None:
    """Return where Mininet is: in this environment or, if it is not there, among Debian's."""
    return find_spec("mininet") or PathFinder.find_spec("mininet", [DEBIAN_FOLDER])


def load_mininet() -> None:
    """Make `import mininet` work if this environment or Debian has it.

    Mininet makes its own class that of all loggers which the process makes later, so that they
    would print without ends of lines. Only Mininet's logger has it.
    """
    spec = mininet_spec()
    if "mininet" not in sys.modules and spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["mininet"] = module
        spec.loader.exec_module(module)
    if "mininet.log" not in sys.modules and spec is not None:
        usual = logging.getLoggerClass()
        import_module("mininet.log")
        logging.setLoggerClass(usual)


load_mininet()
