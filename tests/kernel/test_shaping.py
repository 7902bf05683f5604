"""Shaped interfaces: what netlink sets is what the same commands of `tc` set."""

import pytest

from moefabric.core.errors import FabricError
from moefabric.core.units import QueueLimit
from moefabric.emulator.fabric import shaping
from moefabric.emulator.linux import namespaces, netlink
from moefabric.emulator.linux.command import run


def tc(command: str) -> str:
    return run(["tc", *command.split()])


def shown() -> list[str]:
    return [tc(f"-d -s {kind} show dev a") for kind in ("class", "qdisc")]


def make_pair() -> None:
    netlink.execute([netlink.veth("s0/o0", netlink.VethEnd("a", 9000), netlink.VethEnd("b", 9000))])


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        (None, "pfifo limit 100000"),
        (QueueLimit(20), "pfifo limit 20"),
        (QueueLimit(400_000, in_bytes=True), "bfifo limit 400000"),
    ],
)
@pytest.mark.parametrize("rate_bps", [100e3, 1.234567e6, 2.5e6, 100e6 / 3, 1e9, 9.7e9])
def test_shape_is_that_of_tc(rate_bps: float, queue: QueueLimit | None, words: str) -> None:
    shape = shaping.Shape("s0/o0", "a", rate_bps, queue)
    rate, burst = f"{round(rate_bps)}bit", shaping.burst_bytes(rate_bps)
    htb = f"rate {rate} ceil {rate} burst {burst} cburst {burst} quantum 65536"

    def compare() -> None:
        make_pair()
        tc("qdisc add dev a root handle 1: htb default 1")
        tc(f"class add dev a parent 1: classid 1:1 htb {htb}")
        tc(f"qdisc add dev a parent 1:1 handle 10: {words}")
        by_tc = shown()
        shaping.verify_shapes([shape])
        shaping.remove_shapes([shape])
        shaping.apply_shapes([shape])
        assert shown() == by_tc
        shaping.verify_shapes([shape])
        assert [*shaping.read_queue_counts([shape]).values()] == [(0, 0, 0)]

    namespaces.run_in_new(compare)


RATE = "class change dev a parent 1: classid 1:1 htb rate 100mbit quantum 65536"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (f"{RATE} ceil 100mbit burst 6250 cburst 6250", ""),
        (f"{RATE} ceil 200mbit burst 6250 cburst 12500", r"may send 200000000 b/s \(ceil\), not"),
        (f"{RATE} ceil 100mbit burst 62500 cburst 6250", "sends bursts 10 times as long"),
        (f"{RATE} ceil 100mbit burst 6250 cburst 62500", "sends bursts 10 times as long"),
        (f"{RATE} ceil 100mbit burst 625 cburst 6250", r"sends bursts 0\.1 times as long"),
        ("qdisc change dev a parent 1:1 handle 10: pfifo limit 200", "has pfifo limit 200, not"),
        ("qdisc replace dev a parent 1:1 handle 20: bfifo limit 20", "has bfifo limit 20, not"),
        ("qdisc replace dev a parent 1:1 handle 20: htb", "has htb limit 0, not"),
        ("qdisc del dev a parent 1:1 handle 10:", "has pfifo limit 1000, not pfifo limit 20"),
    ],
)
def test_queue_ceil_and_burst_of_a_link_are_read_back(command: str, why: str) -> None:
    def change() -> None:
        make_pair()
        shape = shaping.Shape("s0/o0", "a", 100e6, QueueLimit(20))
        shaping.apply_shapes([shape])
        shaping.verify_shapes([shape])
        tc(command)
        if not why:
            shaping.verify_shapes([shape])
            return
        with pytest.raises(FabricError, match=rf"^s0/o0: a {why}"):
            shaping.verify_shapes([shape])

    namespaces.run_in_new(change)


def test_veth_pair_has_planned_properties() -> None:
    def make() -> str:
        end = netlink.VethEnd("a", 9000, mac="02:00:0a:00:01:01", most_segments=1, most_bytes=9000)
        netlink.execute([netlink.veth("s0/o0", end, netlink.VethEnd("b", 1500))])
        return run(["ip", "-d", "-o", "link", "show"])

    _, *pair = namespaces.run_in_new(make).splitlines()
    far, near = sorted(pair, key=lambda line: "a@b" in line)
    for words in (
        "mtu 9000",
        "02:00:0a:00:01:01",
        "gso_max_segs 1 ",
        "gso_max_size 9000 ",
        "numtxqueues 1 ",
    ):
        assert words in near
    assert "mtu 1500" in far


def test_many_refusals_are_counted_and_some_are_named() -> None:
    def refuse() -> None:
        requests = [netlink.link_up(f"s{n}/o0", 4711 + n) for n in range(25)]
        with pytest.raises(FabricError, match=r"^s0/o0: .*; s19/o0: .*; 5 more$"):
            netlink.execute(requests)

    namespaces.run_in_new(refuse)


def test_interface_of_a_shape_that_is_missing_is_named() -> None:
    def verify() -> None:
        make_pair()
        shapes = [shaping.Shape("s0/o0", "b", 5e6), shaping.Shape("s0/e0", "c", 5e6)]
        with pytest.raises(FabricError, match="s0/e0: no interface c"):
            shaping.verify_shapes(shapes)
        with pytest.raises(FabricError, match=r"s0/o0: b has qdisc .* where htb was set"):
            shaping.verify_shapes(shapes[:1])
        shaping.remove_shapes(shapes)

    namespaces.run_in_new(verify)
