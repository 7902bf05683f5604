"""Drops of queues: what was counted between two readings, the worst port first."""

from moefabric.report.remarks import queue_text
from moefabric.results.records.queue_readings import queue_drops

BEFORE = {
    "s0/e0": {"packets": 10, "drops": 0},
    "leaf0 to s0/e0": {"packets": 100, "drops": 7},
    "leaf0 to s1/e0": {"packets": 100, "drops": 0},
}
AFTER = {
    "s0/e0": {"packets": 1010, "drops": 3},
    "leaf0 to s0/e0": {"packets": 1_090, "drops": 14},
    "leaf0 to s1/e0": {"packets": 1_100, "drops": 0},
}


def test_drops_are_those_between_readings() -> None:
    drops = queue_drops("20 packets", BEFORE, AFTER)
    assert (drops.limit, drops.packets, drops.drops) == ("20 packets", 2990, 10)
    assert [(port.port, port.drops) for port in drops.ports] == [
        ("leaf0 to s0/e0", 7),
        ("s0/e0", 3),
    ]


def test_line_names_share_and_worst_ports() -> None:
    line = queue_text(queue_drops("20 packets", BEFORE, AFTER))
    assert line == (
        "queues of 20 packets dropped 10 of 3,000 packets (0.33%): 7 at leaf0 to s0/e0; 3 at s0/e0"
    )


def test_line_without_drops() -> None:
    line = queue_text(queue_drops("20 packets", BEFORE, BEFORE))
    assert line == "queues of 20 packets dropped no packet"
