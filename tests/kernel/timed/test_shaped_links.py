"""Shaped links: no transfer beats its link, rates are exact, and packets have the modelled size."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from moefabric.agents.engine import wire
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.emulator.fabric.shaping import Shape, apply_shapes
from moefabric.emulator.linux import namespaces
from moefabric.simulator.fluid import goodput_share
from tests.support.agents_lab import fleet_on, paced_flow
from tests.support.namespaces import Island, island, must
from tests.support.packet_sizes import packets_bytes

MTU = 1500
SECONDS = 0.5
TRIES = 4
collectives = count(1)


class Link:
    """Two servers on one link with the congestion windows of their connection open."""

    def __init__(self, where: Island, fleet: Fleet) -> None:
        self.where, self.fleet = where, fleet
        for server in where.names:
            self.tc(server, "qdisc add dev o0 root handle 1: htb default 1")
            for name in ("slow_start_after_idle", "tso_rtt_log"):
                must(*where.inside(server, "sysctl", "-qw", f"net.ipv4.tcp_{name}=0"))
        self.shape(1e9)
        fleet.connect([DataPath("s0", "s1", "o0", where.addresses["s1"])], congestion="reno")
        self.seconds(1 << 20)

    def tc(self, server: str, command: str) -> str:
        return must(*self.where.inside(server, "tc", *command.split()))

    def shape(self, rate_bps: float) -> None:
        """Shape both ends, for frames of 10 ms or 44 segments, as in a fabric."""
        segments = max(8, min(int(rate_bps * 0.01 / 8 / MTU), 44))
        apply = partial(apply_shapes, [Shape("s0/o0", "o0", rate_bps)])
        for server in self.where.names:
            self.tc(server, "qdisc delete dev o0 root")
            namespaces.run_in(f"/run/netns/{self.where.netns(server)}", apply)
            setting = f"net.ipv4.tcp_min_tso_segs={segments}"
            must(*self.where.inside(server, "sysctl", "-qw", setting))

    def seconds(self, size: int, rate_bps: float | None = None) -> float:
        """Return the time from the first byte sent to the last one received and verified."""
        flow = paced_flow("s0", "s1", size, rate_bps)
        (record,) = self.fleet.run(next(collectives), [flow], deadline_s=30)
        assert record.ok, record.why
        return (record.last_received_ns - record.first_sent_ns) / 1e9

    def packets_bytes(self, server: str) -> int:
        """Return the bytes that a server's end has sent."""
        shown = json.loads(self.tc(server, "-s -j qdisc show dev o0 root"))
        return int(shown[0]["bytes"])


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    folder: Path = tmp_path_factory.mktemp("agents")
    with island("s0", "s1") as where, fleet_on(where, folder) as fleet:
        yield Link(where, fleet)


@pytest.mark.parametrize("rate_bps", [20e6, 200e6, 1e9], ids=["20Mb", "200Mb", "1Gb"])
def test_transfer_never_beats_its_link(link: Link, rate_bps: float) -> None:
    """A busy machine makes transfers late: the best of some tries shows whether the link is."""
    link.shape(rate_bps)
    goodput_bps = rate_bps * goodput_share(MTU)
    errors = []
    for number in range(TRIES):
        size = int(goodput_bps / 8 * SECONDS) + 7919 * number
        errors.append(link.seconds(size, 1.03 * goodput_bps) * goodput_bps / 8 / size - 1)
        assert errors[-1] > -0.002, f"faster than its link: {errors}"
    print(f"{rate_bps / 1e6:.0f} Mb/s:", ", ".join(f"{error:+.3%}" for error in errors))
    assert min(errors) < 0.01, f"slower than its link: {errors}"


def test_paced_transfer_keeps_its_pace(link: Link) -> None:
    """Each frame but the last waits for its share of the pace, and the first one is a segment."""
    link.shape(1e9)
    pace_bps, errors = 20e6, []
    for number in range(TRIES):
        size = int(pace_bps / 8 * SECONDS / 2) + 7919 * number
        errors.append(link.seconds(size, pace_bps) * pace_bps / 8 / size - 1)
        assert errors[-1] > -0.006, f"faster than its pace: {errors}"
    print("20 Mb/s on a link of 1 Gb/s:", ", ".join(f"{error:+.3%}" for error in errors))
    assert min(errors) < 0.01, f"slower than its pace: {errors}"


def test_packets_have_predicted_bytes(link: Link) -> None:
    link.shape(200e6)
    size = 8_000_003
    before = link.packets_bytes("s0"), link.packets_bytes("s1")
    link.seconds(size, 200e6)
    sent, answered = (link.packets_bytes(name) - before[i] for i, name in enumerate(("s0", "s1")))
    assert sent == pytest.approx(packets_bytes(wire.framed_size(size), MTU), rel=1e-3)
    assert size / sent == pytest.approx(goodput_share(MTU), rel=1e-3)
    assert answered < 6e-3 * sent, "acknowledgements"
