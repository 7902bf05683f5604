"""What a controller reads from a switch, by itself and through its framework."""

import logging
from typing import Any

from moefabric.controller.southbound.openflow import frame_check, framework, messages
from moefabric.controller.southbound.openflow.frame_check import FrameError
from tests.support.fuzzing import FuzzTarget

_ANY_SWITCH: Any = framework.module("ofproto.ofproto_protocol").ProtocolDesc(frame_check.VERSION)
_parse = framework.module("ofproto.ofproto_parser").msg


class UndecodedError(Exception):
    """The framework could not decode a message that had passed the check."""


def read_stream(data: bytes) -> None:
    """Read the input as what a switch sends."""
    logging.getLogger(f"{framework.NAME}.ofproto.ofproto_parser").disabled = True
    at = 0
    try:
        while (length := frame_check.length_of(data, at)) and len(data) - at >= length:
            _read_message(data[at : at + length])
            at += length
    except FrameError:
        pass  # the connection is closed


def _read_message(message: bytes) -> None:
    for_framework = frame_check.check(message)
    version, kind, _, xid = frame_check.HEADER.unpack_from(for_framework or message)
    if for_framework is not None:
        wire = bytearray(for_framework)
        if not _parse(_ANY_SWITCH, version, kind, len(wire), xid, wire):
            raise UndecodedError
    elif kind == frame_check.PACKET_IN:
        messages.packet_in(message)
    elif kind == frame_check.ERROR:
        messages.error(message)
    elif kind == frame_check.EXPERIMENTER:
        messages.proved_id("token", bytes(32), message)
    elif kind == frame_check.MULTIPART_REPLY:
        list(messages.flow_counts(message))


TARGETS = (FuzzTarget("openflow-controller", read_stream),)
