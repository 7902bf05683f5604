"""The door of the switches' process: `python -m emulator.switch`, told on standard input what to make, answering on standard output.

It ends when its standard input does. Switches go on as they are for as long as their interfaces live.
"""

import gc
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence

from emulator.switch.agent import Agent
from emulator.switch.chassis import Chassis
from emulator.switch.datapath import BpfDatapath
from emulator.switch.layout import CLASS_BITS
from emulator.switch.openflow_door import Door, Wanted
from emulator.switch.openflow_ports import KernelInterfaces
from moefabric.errors import MoefabricError

_READ_BYTES = 1 << 16


def datapaths(wanted: Sequence[Wanted]) -> Iterator[BpfDatapath]:
    """Switches in the kernel, as many to a chassis as it holds. FabricError where the kernel won't have them."""
    most_ports = max((max(each.ports, default=1) for each in wanted), default=1)
    room = 1 << CLASS_BITS - max(8, most_ports.bit_length())
    for begin in range(0, len(wanted), room):
        some = wanted[begin : begin + room]
        chassis = Chassis(len(some), max(255, most_ports))
        for number, each in enumerate(some):
            made = BpfDatapath(chassis, number)
            made.attach(each.ports)
            yield made


def main() -> int:
    """Serve until standard input ends: 0. 1 with one line for what went wrong."""
    # Rules are many small values without cycles; looking for cycles among them would take longer than a change.
    gc.set_threshold(100_000, 50, 100)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        interfaces = KernelInterfaces()
        agent = Agent(interfaces)
        door = Door(agent, interfaces, datapaths, time.monotonic_ns)
        unended = bytearray()

        def hear() -> None:
            heard = os.read(sys.stdin.fileno(), _READ_BYTES)
            if not heard:
                agent.stop()
                return
            unended.extend(heard)
            *lines, rest = bytes(unended).split(b"\n")
            unended[:] = rest
            for line in lines:
                sys.stdout.buffer.write(door.answer(line))
                sys.stdout.buffer.flush()

        agent.listen_to(sys.stdin, hear)
        agent.serve()
        agent.close()
    except MoefabricError as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
