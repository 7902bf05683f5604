"""Ryu's own tester of OpenFlow switches, as `ryu-manager` runs it, with shorter waits: `python openflow_tester.py SETTLE_S WORD...`.

It waits for its two switches, tries every description, tells what came of each on standard error, and ends itself by SIGTERM.
"""

import sys

from controller.southbound.openflow import shim  # noqa: F401 - it has to come before Ryu

# isort: split
from ryu.cmd import manager
from ryu.tests.switch import tester


def main() -> None:
    """`SETTLE_S`: how long a switch's table counters may be behind its packets; the words are ryu-manager's own."""
    tester.INTERVAL = float(sys.argv[1])
    tester.CONTINUOUS_THREAD_INTVL = (
        0.05  # a sleep lasts a millisecond longer than it should, which 10 ms would feel
    )
    manager.main([*sys.argv[2:], "ryu.tests.switch.tester"])


if __name__ == "__main__":
    main()
