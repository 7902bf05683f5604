"""Messages that a controller accepts from a switch, and those that end the connection."""

import struct

import pytest

from moefabric.controller.southbound.openflow import frame_check
from moefabric.core.openflow import messages
from moefabric.core.openflow.constants import OpenFlowError
from moefabric.core.openflow.messages import Message
from tests.support.openflow_frames import (
    BARRIER_REPLY,
    ERROR,
    FEATURES_REPLY,
    FLOW_STATISTICS,
    GROUP_DESCRIPTIONS,
    HELLO,
    MULTIPART_REPLY,
    PACKET_IN,
    PORT_DESCRIPTIONS,
    PORT_STATUS,
    TABLE_FEATURES,
    frame,
    multipart,
)


def message(wire: bytes) -> Message:
    (received,), _ = messages.split_messages(wire)
    return received


BITMAP = bytes.fromhex("0001000800000010")
ECHO_REQUEST, EXPERIMENTER, FLOW_REMOVED = 2, 4, 11


@pytest.mark.parametrize(
    "wire",
    [
        frame(HELLO),
        frame(ECHO_REQUEST, b"any bytes"),
        frame(FEATURES_REPLY, bytes(24)),
        frame(PORT_STATUS, bytes(72)),
        multipart(PORT_DESCRIPTIONS, bytes(128)),
    ],
    ids=["hello", "echo", "features", "port-status", "ports"],
)
def test_framework_gets_valid_messages_as_they_are(wire: bytes) -> None:
    assert frame_check.check(message(wire)) == message(wire)


@pytest.mark.parametrize(
    "wire",
    [
        frame(ERROR, b"\0\1" + bytes(10)),
        frame(ERROR, bytes(4)),
        frame(EXPERIMENTER, bytes(8)),
        frame(PACKET_IN, bytes(34)),
        frame(FLOW_REMOVED, bytes(48)),
        frame(BARRIER_REPLY),
        multipart(FLOW_STATISTICS),
    ],
    ids=["error", "hello-failed", "experimenter", "packet-in", "flow-removed", "barrier", "flows"],
)
def test_framework_does_not_get_what_the_controller_reads(wire: bytes) -> None:
    assert frame_check.check(message(wire)) is None


@pytest.mark.parametrize(
    ("version", "elements", "expected"),
    [
        (6, BITMAP, 4),
        (9, b"", 4),
        (1, BITMAP, 4),
        (6, bytes.fromhex("0001000c00000010ffffffff00000000"), 4),
        (6, bytes.fromhex("00070005aa000000") + BITMAP, 4),
        (4, bytes.fromhex("00070004"), 4),
        (4, bytes.fromhex("00010004"), 1),
        (6, bytes.fromhex("0001000800000060"), 1),
        (2, b"", 1),
        (0, b"", 1),
    ],
    ids=str,
)
def test_framework_gets_a_hello_of_a_version_that_it_knows(
    version: int, elements: bytes, expected: int
) -> None:
    checked = frame_check.check(message(frame(HELLO, elements, version)))
    assert checked == message(frame(HELLO, version=expected))


@pytest.mark.parametrize(
    "wire",
    [
        frame(HELLO, bytes(8)),
        frame(HELLO, bytes.fromhex("000100ff00000010")),
        frame(HELLO, b"\0\1"),
        frame(ECHO_REQUEST, version=1),
        frame(ERROR, bytes(3)),
        frame(ERROR, b"\0\1\0\0"),
        frame(FEATURES_REPLY, bytes(23)),
        frame(PORT_STATUS, bytes(73)),
        frame(MULTIPART_REPLY, bytes(7)),
        frame(14),
        frame(255),
        multipart(PORT_DESCRIPTIONS, bytes(63)),
        multipart(GROUP_DESCRIPTIONS, bytes(8)),
        multipart(TABLE_FEATURES, bytes(64)),
    ],
    ids=str,
)
def test_malformed_and_unexpected_messages_are_refused(wire: bytes) -> None:
    with pytest.raises(OpenFlowError):
        frame_check.check(message(wire))


def entry(length: int, match: bytes = bytes.fromhex("0001000400000000")) -> bytes:
    return struct.pack("!H", length) + bytes(46) + match


def test_flow_statistics_are_split_by_their_lengths() -> None:
    entries = [entry(56), entry(64) + bytes(8)]
    assert len(list(messages.decode_flow_stats(message(multipart(1, b"".join(entries)))))) == 2
    assert list(messages.decode_flow_stats(message(multipart(1)))) == []


@pytest.mark.parametrize(
    "body",
    [
        bytes(56),
        entry(0),
        entry(57),
        entry(51),
        entry(56)[:50],
        entry(56, bytes.fromhex("0001ffff00000000")),
        entry(56) + b"\0",
    ],
    ids=["no-length", "zero", "too-long", "too-short", "cut-off", "long-match", "rest"],
)
def test_flow_statistics_with_wrong_lengths_are_refused(body: bytes) -> None:
    with pytest.raises(OpenFlowError):
        list(messages.decode_flow_stats(message(multipart(1, body))))


@pytest.mark.parametrize(
    "match",
    [
        "",
        "0001",
        "00010003",
        "0001000900000000",
        "0001000680000004",
        "0001000980000004ff",
        "0001000980000004ff00000000000000",
    ],
)
def test_match_with_wrong_lengths_is_refused(match: str) -> None:
    body = entry(48 + len(match) // 2, bytes.fromhex(match))
    with pytest.raises(OpenFlowError):
        list(messages.decode_flow_stats(message(multipart(FLOW_STATISTICS, body))))
