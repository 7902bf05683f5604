"""Proposed scale: traffic within the machine's capacity, and collectives of measurable length."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.resource_needs import CARRIED_BPS
from moefabric.core.units import QueueLimit, Scale
from moefabric.prediction.scaling import propose_scale, scale_remarks, shortest_wall_s
from tests.support.fabrics import fabric

datapaths = st.sampled_from(sorted(CARRIED_BPS))


@pytest.mark.parametrize(
    ("datapath", "scale"),
    [("ovs-netdev", Scale(bytes=150, dilation=15)), ("bpf", Scale(bytes=40, dilation=15))],
)
def test_prototype_on_two_cores_is_dilated_fifteen_fold(datapath: str, scale: Scale) -> None:
    assert propose_scale([fabric(0, 4), fabric(3, 1)], 0.0314, datapath, cores=2) == scale


@pytest.mark.parametrize(("servers", "seconds"), [(4, 0.45), (8, 0.6), (128, 5.1)])
def test_shortest_wall_time_grows_with_the_servers(servers: int, seconds: float) -> None:
    assert shortest_wall_s(servers, cores=2) == pytest.approx(seconds)


def test_long_collectives_need_no_dilation() -> None:
    assert propose_scale([fabric(0, 4)], 0.45, "ovs-netdev", cores=2) == Scale(
        bytes=2000, dilation=1
    )


def test_collectives_without_bytes_need_no_dilation() -> None:
    assert propose_scale([fabric(0, 4)], 0.0, "ovs-netdev", cores=2).dilation == 1


@given(datapaths, st.integers(1, 128), st.floats(1e-5, 10))
def test_proposed_scale_keeps_both_bounds(datapath: str, cores: int, shortest_s: float) -> None:
    scale = propose_scale([fabric(3, 1), fabric(2, 1)], shortest_s, datapath, cores)
    assert 16 * scale.rate_bps(100e9) <= CARRIED_BPS[datapath] * cores * (1 + 1e-6)
    assert shortest_s * scale.dilation >= shortest_wall_s(4, cores) * (1 - 1e-6)
    assert scale.bytes >= 1


@pytest.mark.parametrize(
    ("cores", "factor"), [(1, 4000), (2, 2000), (4, 1000), (8, 500), (16, 250), (4000, 1)]
)
def test_byte_factors_are_readable_numbers(cores: int, factor: float) -> None:
    assert propose_scale([fabric(0, 4)], 1.0, "ovs-netdev", cores).bytes == factor


def test_proposed_scale_has_no_remarks() -> None:
    fabrics = [fabric(0, 4), fabric(3, 1)]
    scale = propose_scale(fabrics, 0.0314, "bpf", cores=2)
    assert scale_remarks(fabrics, scale, 0.0314, "bpf", cores=2) == []


@pytest.mark.parametrize(
    ("scale", "remark"),
    [
        pytest.param(
            Scale(100, 343),
            "an emulated NIC runs at 2.92 Mb/s, less than 20: emulate up to 160 NICs on 2 cores, "
            "or use more cores",
            id="slow-links",
        ),
        pytest.param(
            Scale(5, 15),
            "all NICs together run at 21.3 Gb/s, and 2 cores carry 3.2: increase scale.bytes or "
            "scale.dilation",
            id="too-much-traffic",
        ),
        pytest.param(
            Scale(2000, 1),
            "a frame takes 1.2% of the shortest transfer, more than 1%: decrease scale.bytes or "
            "increase scale.dilation",
            id="long-frames",
        ),
        pytest.param(
            Scale(1000, 1),
            "the shortest transfer takes 20 ms, and agents start within 9 ms: increase "
            "scale.dilation to 23",
            id="late-agents",
        ),
    ],
)
def test_scale_remarks_name_cause_and_remedy(scale: Scale, remark: str) -> None:
    fabrics = [fabric(0, 4), fabric(3, 1)]
    assert remark in scale_remarks(fabrics, scale, 0.020, "bpf", cores=2)


def test_frames_of_single_packets_cost_four_times_the_scale() -> None:
    limited = replace(fabric(0, 4), queue=QueueLimit(100))
    assert propose_scale([limited], 0.0314, "bpf", cores=2) == Scale(bytes=150, dilation=15)
