"""What a controller reads from a switch, by itself and through its framework."""

import logging
from contextlib import suppress
from typing import Any

from moefabric.controller.southbound.openflow import frame_check, framework, messages
from moefabric.core.openflow.constants import VERSION, MessageType, OpenFlowError
from moefabric.core.openflow.messages import (
    Message,
    decode_flow_stats,
    decode_packet_in,
    split_messages,
)
from tests.support.fuzzing import FuzzTarget

_ANY_SWITCH: Any = framework.module("ofproto.ofproto_protocol").ProtocolDesc(VERSION)
_parse = framework.module("ofproto.ofproto_parser").msg


class UndecodedError(Exception):
    """The framework could not decode a message that had passed the check."""


def read_stream(data: bytes) -> None:
    """Read the input as what a switch sends."""
    logging.getLogger(f"{framework.NAME}.ofproto.ofproto_parser").disabled = True
    with suppress(OpenFlowError):  # the connection is closed
        for message in split_messages(data)[0]:
            _read_message(message)


def _read_message(message: Message) -> None:
    if for_framework := frame_check.check(message):
        version, kind, xid, wire = for_framework
        if not _parse(_ANY_SWITCH, version, kind, len(wire), xid, bytearray(wire)):
            raise UndecodedError
    match message.type:
        case MessageType.PACKET_IN:
            decode_packet_in(message)
        case MessageType.ERROR:
            messages.error(message)
        case MessageType.EXPERIMENTER:
            messages.proved_id("token", bytes(32), message)
        case MessageType.MULTIPART_REPLY:
            list(map(messages.counted_match, decode_flow_stats(message)))


TARGETS = (FuzzTarget("openflow-controller", read_stream),)
