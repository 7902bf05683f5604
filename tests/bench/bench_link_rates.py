"""Signed errors of flows that fill their links for a second, by rate.

All servers send to their neighbour by all NICs at once. An error is the time from the common start
to the last byte received, relative to the time that the link needs for the packets' bytes.
"""

import time

import numpy as np
import pytest

from moefabric.agents.engine import wire
from moefabric.core.eps import Eps
from moefabric.core.flows import PacedFlow
from moefabric.core.topology import Fabric, Region
from moefabric.core.transport import PACED
from moefabric.simulator.fluid import goodput_share
from moefabric.testbed.testbed import data_paths, running_testbed
from tests.bench.recording import record
from tests.support.namespaces import own_machine
from tests.support.packet_sizes import packets_bytes

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]
SERVERS = ("s0", "s1", "s2", "s3")
SECONDS = 1.0
ROUNDS = 12
EXCESS = 1.03
"""Pace relative to the link's rate, as in a run."""


@pytest.mark.parametrize(
    ("rate_bps", "nics"),
    [(10e6, 8), (25e6, 8), (100e6, 8), (1e9, 1)],
    ids=["10Mb", "25Mb", "100Mb", "1Gb"],
)
def test_full_links_take_their_time(rate_bps: float, nics: int) -> None:
    region = Region("r0", 0, SERVERS, None)
    made = Fabric("rates", (region,), 8, 0, nics, rate_bps, Eps(4, 1))
    next_of = set(zip(SERVERS, (*SERVERS[1:], SERVERS[0]), strict=True))
    errors = list[float]()
    with own_machine(), running_testbed(made, transport=PACED) as (_, fleet, _):
        ways = [way for way in data_paths(made) if (way.src, way.dst) in next_of]
        goodput_bps = rate_bps * goodput_share(made.mtu)
        for number in range(ROUNDS):
            size = int(goodput_bps / 8 * SECONDS) + 7919 * number
            needed_s = 8 * packets_bytes(wire.framed_size(size), made.mtu) / rate_bps
            flows = [
                PacedFlow(way.src, way.dst, way.path, size, EXCESS * goodput_bps) for way in ways
            ]
            start_ns = time.monotonic_ns() + fleet.lead_ns(fleet.channels)
            records = fleet.run(1000 + number, flows, start_ns)
            assert all(record.ok for record in records)
            errors += [
                100 * ((record.last_received_ns - start_ns) / 1e9 / needed_s - 1)
                for record in records
            ]
    p5, p50, p95 = np.percentile(errors, [5, 50, 95])
    print(f"\n{rate_bps / 1e6:g} Mb/s, {len(errors)} flows: {p5:+.2f}, {p50:+.2f}, {p95:+.2f} %")
    tail = float(np.percentile(np.abs(errors), 95))
    what, end = "flows that fill their links for a second, errors", f"{rate_bps / 1e6:g} Mb/s"
    shares = [error / 100 for error in errors]
    record(f"{what}, signed median: {end}", "%", samples=shares, at_most=0.002)
    record(f"{what}, 95th percentile: {end}", "%", tail / 100, n=len(errors), at_most=0.01)
    assert abs(p50) <= 0.2
    assert tail <= 1
