"""Names, addresses and ports of a fabric: a function of it, and never the same for two things."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.topology import Eps, Fabric, Kind, Nic, Scale, dscp
from tests.fabrics import fabric, fabrics

nics = st.builds(
    Nic,
    st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True),
    st.sampled_from(Kind),
    st.integers(0, 63),
)


@given(nics)
def test_a_nic_is_read_as_it_is_written(nic: Nic) -> None:
    assert Nic.parse(str(nic)) == nic


@pytest.mark.parametrize(
    ("text", "nic"),
    [("s0/o1", Nic("s0", Kind.OPTICAL, 1)), ("s12/e0", Nic("s12", Kind.ELECTRICAL, 0))],
)
def test_a_nic_is_named_by_its_server_kind_and_index(text: str, nic: Nic) -> None:
    assert Nic.parse(text) == nic
    assert str(nic) == text


@pytest.mark.parametrize("text", ["", "s0", "s0/", "/o0", "s0/x1", "s0/o", "s0/o-1", "s0/o1/o2"])
def test_what_is_no_nic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a NIC such as s0/o1 or s0/e0"):
        Nic.parse(text)


def test_every_path_has_a_dscp_of_its_own_that_fits_six_bits() -> None:
    paths = [f"{kind}{index}" for kind in "oe" for index in range(16)]
    marks = {dscp(path) for path in paths}
    assert len(marks) == len(paths)
    assert min(marks) == 1, "0 is for programs that mark nothing"
    assert max(marks) < 64


def test_the_prototype_has_the_names_addresses_and_ports_of_the_paper() -> None:
    made = fabric()
    assert made.servers == ("s0", "s1", "s2", "s3")
    assert list(map(str, made.nics("s2"))) == ["s2/o0", "s2/o1", "s2/o2", "s2/e0"]
    assert made.addresses("s1")[:2] == ("10.0.1.1", "10.0.1.2")
    assert made.addresses("s1")[-1] == "10.0.1.8"
    assert made.mac("s3") == "02:00:0a:00:03:01"
    assert made.switches == ("s0", "s1", "s2", "s3", "leaf0")
    assert made.ports("s0") == {"host": 1, "s0/o0": 2, "s0/o1": 3, "s0/o2": 4, "s0/e0": 5}
    assert made.ports("leaf0") == {"s0/e0": 1, "s1/e0": 2, "s2/e0": 3, "s3/e0": 4}
    assert made.ocs_port(Nic("s3", Kind.OPTICAL, 2)) == 12


def test_servers_of_the_second_region_count_on_and_have_addresses_of_their_own() -> None:
    made = fabric(regions=(2, 3))
    assert made.servers == ("s0", "s1", "s2", "s3", "s4")
    assert made.addresses("s2")[0] == "10.1.0.1"
    assert str(made.prefix("r1")) == "10.1.0.0/16"
    assert str(made.prefix("*")) == "10.0.0.0/8"
    assert made.ocs_port(Nic("s2", Kind.OPTICAL, 0)) == 1, "each OCS counts its own inputs"


def test_one_leaf_needs_no_spine_and_no_electrical_nic_needs_no_leaf() -> None:
    assert fabric(eps=Eps(4, spines=2)).spines == ()
    assert fabric(electrical=0).leaves == ()


def test_a_leafs_uplinks_carry_its_servers_nics_over_the_oversubscription() -> None:
    made = fabric(0, 4, eps=Eps(servers_per_leaf=2, spines=2, oversubscription=2.0))
    assert made.leaves == ("leaf0", "leaf1")
    assert list(made.uplinks) == [
        ("leaf0", "spine0"),
        ("leaf0", "spine1"),
        ("leaf1", "spine0"),
        ("leaf1", "spine1"),
    ]
    assert made.uplink_rate_bps == 2 * 4 * 100e9 / 2.0 / 2
    assert made.under("leaf1") == ("s2", "s3")
    assert made.leaf_of("s1") == "leaf0"


@given(fabrics())
def test_ports_are_numbered_from_one_without_gaps_on_every_switch(made: Fabric) -> None:
    for switch in made.switches:
        assert sorted(made.ports(switch).values()) == list(range(1, len(made.ports(switch)) + 1))


@given(fabrics())
def test_every_link_has_both_its_ends(made: Fabric) -> None:
    for leaf, spine in made.uplinks:
        assert spine in made.ports(leaf)
        assert leaf in made.ports(spine)
    plugged = Counter(name for leaf in made.leaves for name in made.ports(leaf) if "/" in name)
    assert plugged == Counter(str(nic) for server in made.servers for nic in made.electrical_nics(server))


@given(fabrics())
def test_no_address_mac_or_datapath_is_given_twice(made: Fabric) -> None:
    addresses = [address for server in made.servers for address in made.addresses(server)]
    assert len(set(addresses)) == len(made.servers) * made.gpus
    assert len({made.mac(server) for server in made.servers}) == len(made.servers)
    assert len({made.dpid(switch) for switch in made.switches}) == len(made.switches)


@given(fabrics())
def test_an_ocs_port_leads_back_to_its_nic(made: Fabric) -> None:
    for region in made.regions:
        optical = [nic for server in region.servers for nic in made.optical_nics(server)]
        assert [made.ocs_port(nic) for nic in optical] == list(range(1, len(optical) + 1))
        assert [made.nic_at(region, made.ocs_port(nic)) for nic in optical] == optical


def test_byte_scaling_divides_rates_and_bytes_and_leaves_times() -> None:
    scale = Scale(bytes=500)
    assert (scale.rate_bps(100e9), scale.size_bytes(1e6), scale.wall_ns(7)) == (200e6, 2000, 7)


def test_dilation_divides_rates_again_and_stretches_times() -> None:
    scale = Scale(bytes=500, dilation=2)
    assert (scale.rate_bps(100e9), scale.size_bytes(1e6), scale.wall_ns(7)) == (100e6, 2000, 14)


@pytest.mark.parametrize(("model", "sent"), [(0, 0), (1, 1), (499, 1), (750.1, 2)])
def test_a_byte_that_is_owed_is_never_scaled_away(model: float, sent: int) -> None:
    assert Scale(bytes=500).size_bytes(model) == sent


@given(st.floats(1, 1e4), st.floats(1, 100), st.floats(1e6, 1e12), st.floats(1e9, 1e13))
def test_scaled_bytes_at_a_scaled_rate_take_the_dilated_time(
    factor: float, dilation: float, size: float, rate: float
) -> None:
    scale = Scale(factor, dilation)
    took_s = 8 * scale.size_bytes(size) / scale.rate_bps(rate)
    assert took_s == pytest.approx(8 * size / rate * dilation, rel=1e-2)
