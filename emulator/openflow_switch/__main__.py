"""The process of the switches: `python -m moefabric.emulator.openflow_switch`.

The process reads commands from standard input and writes replies to standard output (see
`agent.control_commands`). It ends when standard input is closed. The switches continue to forward
as long as their interfaces exist.
"""

import gc
import sys
from collections.abc import Iterator, Sequence

from moefabric.core.errors import MoefabricError
from moefabric.emulator.openflow_switch.agent.agent import OpenFlowAgent
from moefabric.emulator.openflow_switch.agent.control_commands import ControlCommands, SwitchSpec
from moefabric.emulator.openflow_switch.agent.interfaces import KernelInterfaces
from moefabric.emulator.openflow_switch.datapath.bpf_datapath import BpfDatapath, SharedProgram
from moefabric.runtime import structured_log


def datapaths(specs: Sequence[SwitchSpec]) -> Iterator[BpfDatapath]:
    """Create datapaths in the kernel, which one program serves.

    Raises:
        FabricError: If the kernel refuses a datapath.
    """
    most_ports = max((max(spec.ports, default=1) for spec in specs), default=1)
    # A machine of a cluster may have no switch.
    program = SharedProgram(max(1, len(specs)), max(255, most_ports))
    for number, spec in enumerate(specs):
        datapath = BpfDatapath(program, number)
        datapath.attach(spec.ports)
        yield datapath


def main() -> int:
    """Serve until standard input ends; return 0, or 1 after an error, which is printed."""
    # Flow entries are many small objects without cycles. A garbage collection of them would take
    # longer than a change of the table.
    gc.set_threshold(100_000, 50, 100)
    structured_log.start("switches")
    try:
        agent = OpenFlowAgent(KernelInterfaces())
        commands = ControlCommands(agent, datapaths)

        def read_command() -> None:
            """Read a line, and reply; the next command comes after the reply."""
            if line := sys.stdin.buffer.readline():
                sys.stdout.buffer.write(commands.reply(line))
                sys.stdout.buffer.flush()
            else:
                agent.stop()

        agent.watch(sys.stdin.fileno(), read_command)
        agent.serve()
        agent.close()
    except MoefabricError as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
