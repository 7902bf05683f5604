"""The door of the agent: `python3 agents/engine/__main__.py --name s0 --control PATH`, or `python3 -m agents.engine ...`."""

import sys
from pathlib import Path

if not __package__:
    # Run by its path, so Python looks among the modules here. It shall look where `agents` is instead, and there last,
    # lest something beside it be taken for a part of Python.
    sys.path = [*sys.path[1:], str(Path(__file__).resolve().parents[2])]

from agents.engine.start import main

if __name__ == "__main__":
    sys.exit(main())
