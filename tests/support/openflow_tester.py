"""Ryu's switch tester with shorter waits: `python -m tests.support.openflow_tester SETTLE_S`.

It waits for its two switches, runs every description, writes the results to standard error, and
ends itself by SIGTERM.
"""

import sys

from moefabric.controller.southbound.openflow import framework  # noqa: F401 - before Ryu

# isort: split
from ryu.cmd import manager
from ryu.tests.switch import tester


def main() -> None:
    """Runs ryu-manager; `SETTLE_S` is how late a switch's table counters may be."""
    tester.INTERVAL = float(sys.argv[1])
    tester.CONTINUOUS_THREAD_INTVL = (
        0.05  # instead of 10 ms: a sleep takes a millisecond longer than requested
    )
    manager.main([*sys.argv[2:], "ryu.tests.switch.tester"])


if __name__ == "__main__":
    main()
