"""The proposed scale keeps the machine within what it carries, and collectives long enough to measure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.scaling import CARRIED_BPS, propose, shortest_wall_s
from moefabric.topology import Scale
from tests.fabrics import fabric

datapaths = st.sampled_from(sorted(CARRIED_BPS))


@pytest.mark.parametrize(
    ("datapath", "scale"),
    [("ovs-netdev", Scale(bytes=150, dilation=15)), ("bpf", Scale(bytes=40, dilation=15))],
)
def test_the_prototype_on_two_cores_lasts_fifteen_times_as_long(datapath: str, scale: Scale) -> None:
    assert propose([fabric(0, 4), fabric(3, 1)], 0.0314, datapath, cores=2) == scale


@pytest.mark.parametrize(("servers", "seconds"), [(4, 0.45), (8, 0.6), (128, 5.1)])
def test_more_servers_need_longer_collectives(servers: int, seconds: float) -> None:
    assert shortest_wall_s(servers, cores=2) == pytest.approx(seconds)


def test_a_long_collective_needs_no_dilation() -> None:
    assert propose([fabric(0, 4)], 0.45, "ovs-netdev", cores=2) == Scale(bytes=2000, dilation=1)


def test_collectives_without_bytes_need_no_dilation() -> None:
    assert propose([fabric(0, 4)], 0.0, "ovs-netdev", cores=2).dilation == 1


@given(datapaths, st.integers(1, 128), st.floats(1e-5, 10))
def test_a_proposed_scale_is_within_both_bounds(datapath: str, cores: int, shortest_s: float) -> None:
    scale = propose([fabric(3, 1), fabric(2, 1)], shortest_s, datapath, cores)
    assert 16 * scale.rate_bps(100e9) <= CARRIED_BPS[datapath] * cores * (1 + 1e-6)
    assert shortest_s * scale.dilation >= shortest_wall_s(4, cores) * (1 - 1e-6)
    assert scale.bytes >= 1


@pytest.mark.parametrize(
    ("cores", "factor"), [(1, 4000), (2, 2000), (4, 1000), (8, 500), (16, 250), (4000, 1)]
)
def test_byte_factors_are_readable(cores: int, factor: float) -> None:
    assert propose([fabric(0, 4)], 1.0, "ovs-netdev", cores).bytes == factor
