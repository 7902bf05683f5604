"""Process that brings a fabric up as `moefabric run` does: `python -m tests.chaos.owner NAME`."""

import os
import signal
import sys

from moefabric.emulator.fabric import lifecycle
from moefabric.testbed.fabric_processes import fabric_processes
from tests.kernel.fabric_lab import small_fabric

if __name__ == "__main__":
    fabric = small_fabric(sys.argv[1])
    lifecycle.up(fabric, fabric_processes, setup=lifecycle.FabricSetup("bpf"), owner=os.getpid())
    print("up", flush=True)
    signal.pause()
