"""Challenges to a switch: it proves its identity to whoever knows the fabric's token."""

import struct
from collections.abc import Iterator

import pytest

from moefabric.core import switch_proof
from moefabric.core.openflow.constants import ErrorCode
from moefabric.emulator.openflow_switch.agent.session import ControllerSession
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Port
from tests.support.memory_datapath import MemoryDatapath, MemoryInterfaces
from tests.support.openflow_frames import ERROR, EXPERIMENTER, HELLO, frame, taken_output

RANDOM = bytes(range(32))


def challenge(kind: int = switch_proof.CHALLENGE, random: bytes = RANDOM) -> bytes:
    return frame(EXPERIMENTER, struct.pack("!II", switch_proof.EXPERIMENTER, kind) + random)


@pytest.fixture
def interfaces() -> Iterator[MemoryInterfaces]:
    interfaces = MemoryInterfaces()
    yield interfaces
    interfaces.close()


def reply(interfaces: MemoryInterfaces, token: str, wire: bytes) -> bytes:
    """Return a switch's reply to a message after the hello."""
    datapath = MemoryDatapath([Port(1, "a")])
    session = ControllerSession(OpenFlowSwitch(5, datapath, interfaces, 0, token), 0)
    session.receive(frame(HELLO), 0)
    taken_output(session)
    session.receive(wire, 0)
    output = taken_output(session)
    datapath.close()
    return output


def test_switch_proves_its_datapath_id(interfaces: MemoryInterfaces) -> None:
    output = reply(interfaces, "token", challenge())
    assert (output[1], output[8:16]) == (EXPERIMENTER, struct.pack("!II", 0x00026D66, 2))
    assert switch_proof.proved_id("token", RANDOM, output[16:]) == 5


@pytest.mark.parametrize(
    ("token", "wire"),
    [
        ("", challenge()),
        ("token", challenge(kind=9)),
        ("token", challenge(random=RANDOM[1:])),
        ("token", frame(EXPERIMENTER)),
    ],
    ids=["no-token", "other-type", "short", "empty"],
)
def test_other_experimenter_messages_are_refused(
    interfaces: MemoryInterfaces, token: str, wire: bytes
) -> None:
    output = reply(interfaces, token, wire)
    assert (output[1], output[8:12]) == (ERROR, struct.pack("!I", ErrorCode.BAD_EXPERIMENTER))
