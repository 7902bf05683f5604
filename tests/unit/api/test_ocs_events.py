"""Events of OCSes as lines: NICs instead of ports, and the time of day."""

import time
from typing import Any

import pytest

from moefabric.api.ocs_events import event_line, event_text
from tests.support.fabrics import fabric

FABRIC = fabric()  # 12 inputs, 3 of each server


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            {"kind": "changed", "made": [[1, 16], [4, 13]], "parted": [[7, 22], [10, 19]]},
            "removed s2/o0~s3/o0; connected s0/o0~s1/o0",
        ),
        (
            {"kind": "changed", "made": [[9, 24], [1, 16], [4, 13]], "parted": [[7, 22]]},
            "removed s2/o0 to s3/o0 (one way); connected s2/o2 to s3/o2 (one way) s0/o0~s1/o0",
        ),
        ({"kind": "settled", "made": [[1, 13]]}, "connected s0/o0 to s0/o0 (one way)"),
        ({"kind": "refused", "words": "busy: 1 is joined to 13"}, "busy: 1 is joined to 13"),
        ({"kind": "port-failed", "ports": [1, 13]}, "s0/o0"),
        ({"kind": "started"}, ""),
    ],
)
def test_text_names_nics(event: dict[str, Any], text: str) -> None:
    assert event_text({"ocs": "ocs0", "at_ns": 0, **event}, FABRIC) == text


def test_line_has_the_time_of_day_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_767_225_600.0)  # 2026-01-01 00:00:00 UTC
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    event = {
        "ocs": "ocs0",
        "at_ns": 1_001_250_000_000,
        "kind": "settled",
        "made": [[1, 16], [4, 13]],
    }
    line = "00:00:01.250 ocs0   settled        connected s0/o0~s1/o0"
    assert event_line(event, FABRIC) == line


def test_loss_of_light_has_the_instant_of_its_last_sight() -> None:
    event = {"at_ns": 10, "kind": "lost", "failure": "light", "what": ["s0/o0~s1/o0"], "why": "x"}
    line = event_line(event, FABRIC)
    assert line.endswith("light s0/o0~s1/o0, last seen at this instant: x")
