"""What Ryu 4.34 needs before it can be imported: a name that Eventlet no longer has, and less of the world than it would load.

Import this module before anything of Eventlet or Ryu.
"""

import os
import sys
import warnings

# Eventlet's own resolver takes 0.3 s to load, and a controller resolves no names.
os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")

# Ryu asks distutils to compare two versions; setuptools' stand-in for it would load all of setuptools. Python had its own until 3.12.
if sys.version_info < (3, 12) and "_distutils_hack" in sys.modules:
    sys.modules["_distutils_hack"].remove_shim()

# Both announce the end of their lives at each import; whoever starts a fabric can do nothing about it.
warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated")
warnings.filterwarnings("ignore", message=".*distutils")

import eventlet.wsgi  # noqa: E402

if not hasattr(
    eventlet.wsgi, "ALREADY_HANDLED"
):  # gone since Eventlet 0.30.3; ryu.app.wsgi, which nothing here uses, imports it
    eventlet.wsgi.ALREADY_HANDLED = None
