"""Programmable links keep their time: round trips, rates, and how late frames leave."""

import statistics
import subprocess

from moefabric.core.link import LinkBehaviour, Scheduling
from moefabric.emulator.link.hosts import link_between
from tests.support.attempts import measurements

DELAY_NS = 5_000_000


def round_trips_ms(count: int = 50) -> list[float]:
    with link_between(LinkBehaviour(delay_ns=DELAY_NS)) as net:
        a, b = net.hosts
        ping = a.argv("ping", "-c", str(count), "-i", "0.01", b.address)
        output = subprocess.run(ping, capture_output=True, text=True, check=True).stdout
    return [
        float(line.split("time=")[1].split()[0]) for line in output.splitlines() if "time=" in line
    ]


def test_round_trip_is_both_delays() -> None:
    tries = measurements(round_trips_ms, lambda ms: statistics.median(ms) < 10.5)
    assert min(min(ms) for ms in tries) >= 10
    assert min(statistics.median(ms) for ms in tries) < 10.5


def test_full_link_is_prompt_with_every_scheduling() -> None:
    for scheduling in Scheduling:
        behaviour = LinkBehaviour(100e6, 1_000_000, queue_bytes=100_000, scheduling=scheduling)

        def p99_ns(behaviour: LinkBehaviour = behaviour) -> int:
            with link_between(behaviour) as net:
                a, b = net.hosts
                flood = a.argv("ping", "-f", "-c", "300", "-s", "1400", "-q", b.address)
                subprocess.run(flood, capture_output=True, check=True, timeout=30)
                return net.counters().lateness.p99_ns

        assert min(measurements(p99_ns, lambda ns: ns < 1_000_000)) < 1_000_000
