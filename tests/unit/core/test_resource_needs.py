"""What parts of fabrics need: cores by emulated bytes, memory by servers."""

from dataclasses import replace

import pytest

from moefabric.core.eps import Eps
from moefabric.core.machine_speed import IDLE_SHARE, MachineSpeed, frame_bits
from moefabric.core.resource_needs import eps_needs, fabric_needs, region_needs
from moefabric.core.units import QueueLimit, Scale
from tests.support.fabrics import fabric


def test_every_region_and_the_eps_is_a_part() -> None:
    assert list(fabric_needs(fabric(regions=(4, 2, 3)))) == ["r0", "r1", "r2", "eps"]
    assert list(fabric_needs(fabric(electrical=0))) == ["r0"]


def test_cores_follow_the_emulated_rate_of_all_nics() -> None:
    slow, fast = fabric(scale=Scale(1000)), fabric(scale=Scale(100))
    (region,) = slow.regions
    more = region_needs(fast, region).cores - region_needs(slow, region).cores
    frame_s = MachineSpeed().link_frame_s(fast, 44, "bpf")
    frames = 2 * 16 * (100e9 / 100 - 100e9 / 1000) / frame_bits(44, 1500)
    assert more == pytest.approx(frames * frame_s / (1 - IDLE_SHARE))


def test_memory_follows_the_number_of_servers() -> None:
    small, large = fabric(regions=(4,)), fabric(regions=(8,))
    per_server = region_needs(large, large.regions[0]).memory_bytes
    per_server -= region_needs(small, small.regions[0]).memory_bytes
    assert per_server > 0
    assert eps_needs(small).memory_bytes == eps_needs(large).memory_bytes


def test_single_packets_need_more_cores() -> None:
    many = fabric(scale=Scale(100))
    single = replace(many, queue=QueueLimit(100))
    assert fabric_needs(single)["r0"].cores > 3 * fabric_needs(many)["r0"].cores


def test_an_eps_of_a_larger_fabric_needs_more_cores() -> None:
    scale = Scale(100)
    small, large = fabric(eps=Eps(4), scale=scale), fabric(regions=(4, 4), eps=Eps(4), scale=scale)
    assert eps_needs(large).cores > eps_needs(small).cores
