"""Queues of limited room: incast overflows them under TCP, and not when flows are paced."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from statistics import median

from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.eps import Eps
from moefabric.core.flows import PacedFlow
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import QueueLimit
from moefabric.emulator.fabric import lifecycle
from moefabric.planner.sending.flow_pacing import pace_bps
from moefabric.simulator.fluid import goodput_share
from moefabric.testbed.testbed import running_testbed

RATE_BPS = 50e6
SENDERS = ("s1", "s2", "s3", "s4")
REGION = Region("r0", 0, ("s0", *SENDERS), None)
UNLIMITED = Fabric("no-limit", (REGION,), 1, 0, 1, RATE_BPS, Eps(5))
SIZE = 100_000
"""Bytes of each sender: 70 packets."""
BOUND_S = 8 * len(SENDERS) * SIZE / (RATE_BPS * goodput_share(UNLIMITED.mtu))
ROUNDS = 7
collectives = count(1)


@contextmanager
def agents_of(fabric: Fabric) -> Iterator[Fleet]:
    with running_testbed(fabric) as (_, fleet, _):
        yield fleet


def incast(fabric: Fabric, fleet: Fleet, rate_bps: float | None = None) -> tuple[list[float], int]:
    """Let four servers send to one, several times.

    Returns:
        Durations in seconds, and the number of packets dropped at the receiver's port. The receiver
        compares every byte.
    """
    flows = [PacedFlow(server, "s0", "e0", SIZE, rate_bps) for server in SENDERS]
    before, durations_s = receiver_drops(fabric), []
    for _ in range(ROUNDS):
        records = fleet.run(next(collectives), flows, deadline_s=30)
        assert all(record.ok for record in records), [record.why for record in records]
        end_ns = max(record.last_received_ns for record in records)
        durations_s.append((end_ns - min(record.first_sent_ns for record in records)) / 1e9)
    return durations_s, receiver_drops(fabric) - before


def receiver_drops(fabric: Fabric) -> int:
    queues = lifecycle.queues(fabric.name)
    assert queues["s0/e0"]["packets"] > 0, "acknowledgements"
    return queues["leaf0 to s0/e0"]["drops"]


def limited(packets: int) -> Fabric:
    return replace(UNLIMITED, name=f"queues-of-{packets}", queue=QueueLimit(packets))


def test_tcp_incast_ends_later_in_queues_shorter_than_a_packet_per_sender() -> None:
    """Round trips are short here, so windows of one packet already fill the receiver's link.

    Other work only delays packets, so the least duration stands for queues without a limit. With
    drops, few rounds end soon: those in which no sender has to wait for its retransmission timer.
    """
    fabric = limited(len(SENDERS) - 1)
    with agents_of(UNLIMITED) as fleet:
        durations_s, none = incast(UNLIMITED, fleet)
        long_s = min(durations_s)
    with agents_of(fabric) as fleet:
        durations_s, drops = incast(fabric, fleet)
        short_s = median(durations_s)
    print(
        f"\nfluid bound {BOUND_S * 1e3:.0f} ms, TCP {long_s * 1e3:.0f} ms, with queues of "
        f"{fabric.queue} {short_s * 1e3:.0f} ms and {drops} drops"
    )
    assert none == 0
    assert drops > ROUNDS * len(SENDERS)
    assert short_s > 1.5 * long_s


def test_incast_overflows_twenty_packets_under_tcp_and_not_if_paced() -> None:
    fabric = limited(20)
    with agents_of(fabric) as fleet:
        greedy_drops = receiver_drops(fabric)  # of the first bytes of new connections
        durations_s, paced_drops = incast(fabric, fleet, pace_bps(fabric, SIZE, BOUND_S))
        paced_s = min(durations_s)
    print(f"\nfluid bound {BOUND_S * 1e3:.0f} ms, paced {paced_s * 1e3:.0f} ms")
    assert greedy_drops > 0
    assert paced_drops == 0
    assert BOUND_S < paced_s < 1.1 * BOUND_S


def test_acknowledgements_pass_shaped_links_at_once() -> None:
    with agents_of(UNLIMITED) as fleet:
        before = lifecycle.queues(UNLIMITED.name)
        (record,) = fleet.run(next(collectives), [PacedFlow("s1", "s0", "e0", 1_000_000, RATE_BPS)])
        assert record.ok, record.why
        after = lifecycle.queues(UNLIMITED.name)
        sent, answered = (
            after[end]["packets"] - before[end]["packets"] for end in ("s1/e0", "s0/e0")
        )
        assert sent > 15  # frames of 64 KB at most
        assert answered <= 4  # the agent's own answer has a payload
