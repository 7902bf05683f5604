"""Prepares Python for Ryu 4.34; import this module before anything of Eventlet or Ryu.

It restores a name that Eventlet no longer has, and keeps Ryu from loading more than it needs.
"""

import os
import sys
import warnings

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

# ryu.app.wsgi, which is unused here, imports a name that is gone since Eventlet 0.30.3.
if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = None
