"""Starts the agent: `python3 agents/engine/__main__.py --name s0 --control PATH`."""

import sys
from pathlib import Path

if not __package__:
    # Python searches this folder first, because the file is run by its path. Search the folder of
    # `moefabric` instead, and last, so that no module there hides one of the standard library.
    sys.path = [*sys.path[1:], str(Path(__file__).absolute().parents[3])]

from moefabric.agents.engine.main import main

if __name__ == "__main__":
    sys.exit(main())
