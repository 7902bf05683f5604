"""Captured files, payload of control protocols, and lines of logs."""

import io
from contextlib import suppress

from moefabric.api.capture import add_comments
from moefabric.api.capture_summary import control_messages
from moefabric.api.logs import parse_line
from moefabric.emulator.linux.pcapng import PcapngError
from moefabric.runtime.structured_log import ids_of_baggage
from tests.support.fuzzing import FuzzTarget


def read_capture(data: bytes) -> None:
    """Add comments to the input as a captured file, and read messages in it."""
    with suppress(PcapngError):  # what the reader documents
        add_comments(io.BytesIO(data), io.BytesIO(), lambda number, _: f"circuit {number}")
    for ports in ((40000, 5025), (3082, 40000), (6653, 40000)):
        list(control_messages(*ports, data))


def read_log(data: bytes) -> None:
    """Read the input as a line of a log, and as a header with ids."""
    parse_line(data, "agent-s0", "2026-01-01T00:00:00.000000+00:00").text()
    ids_of_baggage(data.decode("latin-1"))


TARGETS = (FuzzTarget("log-lines", read_log), FuzzTarget("pcapng", read_capture))
