"""Frames that a switch, or somebody else, sends to a controller, as bytes."""

import struct

from moefabric.emulator.openflow_switch.agent.session import ControllerSession

HELLO, ERROR, EXPERIMENTER, FEATURES_REPLY, PACKET_IN = 0, 1, 4, 6, 10
PORT_STATUS, MULTIPART_REPLY, BARRIER_REPLY = 12, 19, 21
FLOW_STATISTICS, GROUP_DESCRIPTIONS, TABLE_FEATURES, PORT_DESCRIPTIONS = 1, 7, 12, 13


def frame(kind: int, body: bytes = b"", version: int = 4) -> bytes:
    """Return a message with a valid length."""
    return struct.pack("!BBHI", version, kind, 8 + len(body), 1) + body


def multipart(kind: int, body: bytes = b"") -> bytes:
    """Return a multipart reply."""
    return frame(MULTIPART_REPLY, struct.pack("!HH4x", kind, 0) + body)


def taken_output(session: ControllerSession) -> bytes:
    """Take all output of a switch's session."""
    sent = bytearray()

    def send(waiting: bytearray) -> int:
        sent.extend(waiting)
        return len(waiting)

    session.transmit(send, 0)
    return bytes(sent)
