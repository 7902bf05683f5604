"""Bytes between leaves on real packets: routes say which cross spines, and uplinks count them."""

from itertools import permutations

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.flows import Flow, PacedFlow, Share, flows
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.emulator.fabric import lifecycle
from moefabric.results.records.queue_readings import spine_bytes, uplink_payload
from moefabric.testbed.testbed import running_testbed

pytestmark = pytest.mark.ovs

SERVERS = tuple(f"s{number}" for number in range(6))
FABRIC = Fabric(
    "spine-traffic",
    (Region("r0", 0, SERVERS[:3], None), Region("r1", 1, SERVERS[3:], None)),
    1,
    0,
    2,
    200e6,
    Eps(2, 2),
    Scale(),
)
"""Three leaves of two servers: each region lies across two of them."""
SIZE = 400_000


def planned(pairs: list[tuple[str, str]]) -> tuple[Flow, ...]:
    return flows(FABRIC, CircuitSet(), [Share(src, dst, 0.0, SIZE) for src, dst in pairs])


def test_uplinks_count_the_bytes_whose_routes_cross_spines() -> None:
    within = [pair for group in FABRIC.ep_groups.values() for pair in permutations(group, 2)]
    between = list(zip(*FABRIC.ep_groups.values(), strict=True))
    with running_testbed(FABRIC, pairs_between_regions=between) as (_, fleet, _):
        for number, pairs in enumerate((within, between), 1):
            sent = planned(pairs)
            before = lifecycle.queues(FABRIC.name)
            paced = [PacedFlow(f.src, f.dst, f.path, round(f.bytes), 20e6) for f in sent]
            assert all(record.ok for record in fleet.run(number, paced))
            counted = uplink_payload(before, lifecycle.queues(FABRIC.name))
            crossed = spine_bytes(FABRIC, sent)
            print(f"routes {crossed:.0f} bytes, uplinks {counted} ({counted / crossed - 1:+.2%})")
            assert crossed > 0
            assert abs(counted / crossed - 1) < 0.01
