"""Messages of agents: malformed ones are refused with the field that is wrong."""

import json
from typing import Any

import pytest

from moefabric.agents.fleet.inflight import flow_records
from moefabric.agents.fleet.messages import Message, parse_message
from moefabric.core.errors import AgentError
from moefabric.core.flows import PacedFlow

TRANSFER = {
    "moved": 5, "first_ns": 1, "last_ns": None, "ok": True, "why": "", "corrupt": False,
}  # fmt: skip
DONE: Message = {
    "event": "done", "collective": 1, "sends": [TRANSFER], "receives": [],
}  # fmt: skip
EXCHANGE: Message = {
    "event": "exchange", "rank": 0, "name": "", "group": [0], "number": 0, "sends": [4],
    "receives": [4], "dtype": "float32", "tokens": None, "asked_ns": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    "message", [DONE, EXCHANGE, {"id": 1, "ok": True, "more": [{}]}, {"event": "fault", "error": 1}]
)
def test_message_is_read_as_it_was_sent(message: Message) -> None:
    assert parse_message(json.dumps(message).encode()) == message


@pytest.mark.parametrize(
    ("message", "error"),
    [
        pytest.param([1], r"malformed message: \[1\]", id="list"),
        pytest.param({"event": []}, "malformed message", id="event"),
        pytest.param({"id": [1], "ok": True}, "id: ", id="unhashable-id"),
        pytest.param({"id": 1, "ok": 1}, "ok: ", id="ok-is-a-number"),
        pytest.param({"id": 1, "ok": False}, "a refusal without a reason", id="no-reason"),
        pytest.param({**DONE, "collective": {}}, "collective: ", id="collective"),
        pytest.param({**DONE, "sends": [{}]}, r"sends\.0\.moved: ", id="transfer"),
        pytest.param({"event": "rank", "gpu": 0}, "alive: ", id="rank"),
        pytest.param({"event": "rank_lost", "rank": 0}, "why: ", id="lost-rank"),
        pytest.param({**EXCHANGE, "tokens": 5}, "tokens: ", id="tokens"),
        pytest.param({**EXCHANGE, "rank": 1}, "does not fit its group", id="foreign-rank"),
        pytest.param({**EXCHANGE, "sends": []}, "does not fit its group", id="sizes"),
    ],
)
def test_malformed_message_is_refused(message: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_message(json.dumps(message).encode())


@pytest.mark.parametrize("line", [b"what?", b"[" * 5000, b"\xff"])
def test_line_that_is_not_json_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_message(line)


def test_report_that_lacks_a_transfer_names_its_agent() -> None:
    flow = PacedFlow("s0", "s1", "o0", 5, None)
    reports: dict[str, Message] = {"s0": DONE, "s1": {**DONE, "receives": []}}
    with pytest.raises(AgentError, match="agent s1: its report on collective 1 lacks a transfer"):
        flow_records(1, [flow], reports, lambda _, instant_ns: instant_ns or 0)
