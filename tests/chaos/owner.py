"""Process that brings a fabric up as `moefabric run` does: `python -m tests.chaos.owner NAME`."""

import os
import signal
import sys

from moefabric.controller.client import wait_for_controllers
from moefabric.emulator.fabric import lifecycle
from moefabric.testbed.fabric_processes import fabric_processes, up_timeout_s
from tests.chaos.faults import SERVERS
from tests.kernel.fabric_lab import small_fabric

if __name__ == "__main__":
    wanted = lifecycle.wanted(small_fabric(sys.argv[1], servers=SERVERS), "bpf")
    wiring = lifecycle.up(wanted, fabric_processes, owner=os.getpid())
    wait_for_controllers(wiring, up_timeout_s(wiring.fabric))
    print("up", flush=True)
    signal.pause()
