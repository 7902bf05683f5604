"""The OpenFlow framework: Ryu 4.34 or, where Ryu is not installed, os-ken.

os-ken is OpenStack's maintained fork of Ryu with the same interfaces. pip installs it on any
Python; Ryu's source distribution builds with a setuptools before version 68 only. This module is
imported before Eventlet and the framework.

Attributes:
    NAME: Import name of the framework.
"""

import os
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

# Eventlet's own resolver takes 0.3 s to load, and a controller resolves no names.
os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")

# Ryu compares two versions by distutils; setuptools' stand-in for it would load all of setuptools.
# Python has a distutils of its own until 3.12.
if sys.version_info < (3, 12) and "_distutils_hack" in sys.modules:
    sys.modules["_distutils_hack"].remove_shim()

# Both warn of their deprecation at each import; users of a fabric can't change that.
warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated")
warnings.filterwarnings("ignore", message=".*distutils")

import eventlet.wsgi  # noqa: E402

NAME: Final = "ryu" if find_spec("ryu") else "os_ken"

if NAME == "ryu" and not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    # ryu.app.wsgi, which is unused here, imports a name that is gone since Eventlet 0.30.3.
    eventlet.wsgi.ALREADY_HANDLED = None


def module(name: str) -> Any:
    """Return a module of the framework, such as `module("ofproto.ofproto_v1_3")`."""
    return import_module(f"{NAME}.{name}")
