"""A direction of a link against schedules that are computed by hand. 8 Mb/s: 1 byte takes 1 µs."""

from collections import Counter

import pytest

from moefabric.core.link import LinkBehaviour, PathChoice, Scheduling
from moefabric.emulator.link.headers import is_ecn_capable
from moefabric.emulator.link.port import LinkPort
from tests.support.switch_frames import udp_frame

US = 1000
MBPS_8 = 8e6
LATER = 10**12


def passed(port: LinkPort, now_ns: int = LATER) -> list[tuple[float, int]]:
    """Return times in µs and lengths of the frames that have arrived."""
    return [(at_ns / US, len(frame)) for at_ns, frame in port.due(now_ns)]


def ports_of(frames: list[tuple[int, bytes]]) -> list[int]:
    return [int.from_bytes(frame[34:36]) for _, frame in frames]


def test_frames_leave_at_the_rate_and_arrive_after_the_delay() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, delay_ns=500 * US))
    for length in (100, 200, 300):
        port.arrive(udp_frame(length), 0)
    port.arrive(udp_frame(60), 1000 * US)  # the link has been idle since 600 µs
    assert passed(port) == [(600, 100), (800, 200), (1100, 300), (1560, 60)]
    assert (port.counts.packets, port.counts.bytes) == (4, 660)
    assert port.counts.peak_bytes == 500, "the frame that is being sent doesn't wait"


def test_frames_arrive_when_they_are_due_and_not_before() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8))
    for _ in range(2):
        port.arrive(udp_frame(100), 0)
    assert port.next_ns == 100 * US
    assert passed(port, 100 * US - 1) == []
    assert passed(port, 100 * US) == [(100, 100)]
    assert port.next_ns == 200 * US
    assert passed(port, 200 * US) == [(200, 100)]
    assert port.next_ns is None


def test_link_without_a_rate_only_delays() -> None:
    port = LinkPort(LinkBehaviour(delay_ns=5 * US))
    for at_us in (0, 0, 3):
        port.arrive(udp_frame(1500), at_us * US)
    assert passed(port) == [(5, 1500), (5, 1500), (8, 1500)]


def test_late_caller_changes_neither_drops_nor_times() -> None:
    behaviour = LinkBehaviour(MBPS_8, queue_bytes=250)
    arrivals = [(at_us * US, udp_frame(100)) for at_us in (0, 10, 20, 30, 120, 125, 390)]
    prompt, late = LinkPort(behaviour), LinkPort(behaviour)
    steps: list[tuple[float, int]] = []
    for at_ns, frame in arrivals:
        prompt.arrive(frame, at_ns)
        steps += passed(prompt, at_ns)
        late.arrive(frame, at_ns)
    assert steps + passed(prompt) == passed(late)
    assert prompt.counts == late.counts
    assert prompt.counts.full == {0: 2}  # at 30 and 125 µs two frames wait


def test_frame_without_room_is_dropped() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, queue_bytes=300))
    for number in range(5):
        port.arrive(udp_frame(100, port=number), 0)
    assert ports_of(port.due(LATER)) == [0, 1, 2, 3]  # one is sent at once, three wait
    assert port.counts.full == {0: 1}
    assert port.counts.dropped == 1


def test_higher_classes_leave_first_and_keep_their_room() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, queue_bytes=300, scheduling=Scheduling.PRIORITY))
    for number, traffic_class in enumerate((0, 1, 1, 2, 7, 0)):
        port.arrive(udp_frame(100, traffic_class=traffic_class, port=number), 0)
    # 0 is being sent. 1, 2, 3 wait; 4 takes the room of the last of class 1; 5 is the lowest.
    assert ports_of(port.due(LATER)) == [0, 4, 3, 1]
    assert port.counts.full == {1: 1, 0: 1}


def test_capable_packets_are_marked_and_others_dropped_at_their_thresholds() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, ecn_bytes=200, early_drop_bytes=100))
    for number, ecn in enumerate((2, 2, 0, 1, 2, 0)):
        port.arrive(udp_frame(100, ecn=ecn, port=number), 0)
    frames = port.due(LATER)
    assert ports_of(frames) == [0, 1, 3, 4]
    assert [frame[15] & 3 for _, frame in frames] == [2, 2, 1, 3]  # 4 found 200 bytes waiting
    assert all(is_ecn_capable(frame) for _, frame in frames)
    assert (port.counts.marked, port.counts.early) == (1, {0: 2})


def test_thresholds_hold_for_each_class() -> None:
    behaviour = LinkBehaviour(MBPS_8, ecn_bytes=100, scheduling=Scheduling.PRIORITY)
    port = LinkPort(behaviour)
    for traffic_class in (0, 0, 0, 5):
        port.arrive(udp_frame(100, traffic_class=traffic_class, ecn=2), 0)
    assert port.counts.marked == 1, "the third of class 0; class 5 is empty"


def test_flows_share_a_fair_link_by_bytes() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, scheduling=Scheduling.FAIR))
    port.arrive(udp_frame(60, port=9), 0)
    for _ in range(40):
        port.arrive(udp_frame(1500, port=1), 0)
    for _ in range(80):
        port.arrive(udp_frame(750, port=2), 0)
    half = port.due(60_000 * US)
    sent = Counter[int]()
    for (_, frame), flow in zip(half, ports_of(half), strict=True):
        sent[flow] += len(frame)
    assert abs(sent[1] - sent[2]) <= 2 * 1514


def test_longest_flow_of_a_fair_link_loses_packets() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, queue_bytes=400, scheduling=Scheduling.FAIR))
    for flow in (9, 1, 1, 1, 1, 2):
        port.arrive(udp_frame(100, port=flow), 0)
    # Credits of a full frame: both flows send all their frames in one turn each.
    assert ports_of(port.due(LATER)) == [9, 1, 1, 1, 2]


def test_packets_are_sprayed_over_paths_of_a_share_of_the_rate_each() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, paths=2))
    for length in (1000, 100, 100, 100):
        port.arrive(udp_frame(length), 0)
    # Path 0 sends 1000 and 100 bytes at 2 µs a byte, path 1 twice 100: packets overtake.
    assert passed(port) == [(200, 100), (400, 100), (2000, 1000), (2200, 100)]


def test_flows_keep_their_path_and_order() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, paths=4, path_choice=PathChoice.FLOW))
    for _ in range(3):
        port.arrive(udp_frame(100, port=1), 0)
    assert passed(port) == [(400, 100), (800, 100), (1200, 100)]


def test_jitter_delays_without_reordering() -> None:
    port = LinkPort(LinkBehaviour(delay_ns=100 * US, jitter_ns=50 * US))
    for number in range(100):
        port.arrive(udp_frame(100, port=number), number * US)
    frames = port.due(LATER)
    assert ports_of(frames) == list(range(100))
    times = [at_ns for at_ns, _ in frames]
    assert times == sorted(times)
    delays_us = [at_ns / US - number for number, (at_ns, _) in enumerate(frames)]
    assert min(delays_us) >= 100
    assert max(delays_us) <= 150
    assert max(delays_us) - min(delays_us) > 5


def test_share_of_packets_is_lost_after_they_took_their_time() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, loss=0.25))
    for _ in range(4000):
        port.arrive(udp_frame(100), 0)
    frames = passed(port)
    assert 900 < port.counts.lost[0] < 1100
    assert len(frames) + port.counts.lost[0] == 4000
    assert frames[-1][0] > 390_000, "lost frames occupy the link, too"


def test_link_whose_frames_are_lost_still_asks_for_the_next() -> None:
    port = LinkPort(LinkBehaviour(MBPS_8, loss=0.999))
    for _ in range(3):
        port.arrive(udp_frame(100), 0)
    assert port.next_ns == 100 * US


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate_bps": 0.0}, "sends nothing"),
        ({"delay_ns": -1}, "negative"),
        ({"loss": 1.0}, "probability"),
        ({"paths": 0}, "path at least"),
    ],
)
def test_impossible_behaviour_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinkBehaviour(**values)  # type: ignore[arg-type]  # the table mixes types
