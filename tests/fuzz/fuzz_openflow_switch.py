"""What a switch reads from a controller, with tables in memory."""

import logging

from moefabric.emulator.openflow_switch.agent.session import ControllerSession
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Port
from tests.support.fuzzing import FuzzTarget
from tests.support.memory_datapath import MemoryDatapath, MemoryInterfaces
from tests.support.openflow_frames import HELLO, frame

_INTERFACES = MemoryInterfaces()
_DATAPATH = MemoryDatapath([Port(1, "a"), Port(2, "b")])


def read_stream(data: bytes) -> None:
    """Read the input as what a controller sends after its hello, and make the changes."""
    logging.getLogger("moefabric").setLevel(logging.CRITICAL)
    session = ControllerSession(OpenFlowSwitch(5, _DATAPATH, _INTERFACES, 0, "token"), 0)
    session.receive(frame(HELLO) + data, 0)
    session.receive(frame(20), 1)  # a barrier
    session.tick(session.due_ns)
    session.close()
    _DATAPATH.sent.clear()


TARGETS = (FuzzTarget("openflow-switch", read_stream),)
