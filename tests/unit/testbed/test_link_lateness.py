"""Verdict on runs whose programmed links were late."""

from dataclasses import replace

from moefabric.core.eps import Eps
from moefabric.core.link import EpsLink, LinkBehaviour
from moefabric.core.resource_needs import RELAYED_BPS
from moefabric.core.topology import Fabric, Region, drops_packets, queue_room
from moefabric.core.units import Scale
from moefabric.planner.sending.flow_pacing import pace_bps
from moefabric.prediction.scaling import PlannedLoad, propose_scale
from moefabric.results.parts import LinkLateness
from moefabric.results.verdict.fabric_result import lateness_findings

LINK = EpsLink(LinkBehaviour(delay_ns=10_000_000, queue_bytes=64_000))
FABRIC = Fabric(
    "f", (Region("r0", 0, ("s0", "s1"), None),), 1, 0, 1, 100e9, Eps(2, link=LINK), Scale(1000)
)
PROMPT = LinkLateness(frames=100, p50_ns=50_000, p99_ns=490_000, max_ns=9_000_000, overflows=0)


def test_prompt_relay_degrades_nothing() -> None:
    assert not list(lateness_findings(FABRIC, PROMPT))


def test_late_relay_degrades_with_its_figures() -> None:
    late = PROMPT.model_copy(update={"p99_ns": 1_200_000})
    assert [one.text for one in lateness_findings(FABRIC, late)] == [
        "99th percentile of how late links pass packets on, 1.2ms, is over 500us (most: 9ms)"
    ]


def test_bound_grows_with_the_emulated_delay() -> None:
    dilated = replace(FABRIC, scale=Scale(1000, dilation=3))
    late = PROMPT.model_copy(update={"p99_ns": 1_490_000})
    assert not list(lateness_findings(dilated, late))
    assert list(lateness_findings(FABRIC, late))


def test_lost_packets_degrade() -> None:
    lossy = PROMPT.model_copy(update={"overflows": 3})
    assert [one.text for one in lateness_findings(FABRIC, lossy)] == [
        "3 packets were lost because the relay of links was too late"
    ]


def test_scale_leaves_the_relay_time() -> None:
    load = PlannedLoad(FABRIC, 1.0, 1e9, {2: 1.0})
    scale = propose_scale([load], "bpf", cores=8).scale
    assert 2 * scale.rate_bps(FABRIC.nic_rate_bps) <= RELAYED_BPS


def test_links_that_drop_packets_are_paced_below_their_rate() -> None:
    plain = replace(FABRIC, eps=Eps(2))
    paced = [pace_bps(fabric, 10_000_000, 1.0) for fabric in (FABRIC, plain)]
    assert paced[0] is not None
    assert paced[1] is not None
    assert paced[0] < paced[1]
    assert (queue_room(FABRIC), drops_packets(FABRIC), drops_packets(plain)) == (
        "64000 bytes",
        True,
        False,
    )
