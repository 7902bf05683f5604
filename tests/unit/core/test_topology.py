"""Names, addresses and ports of a fabric are functions of it, and unique."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.eps import Eps
from moefabric.core.nic import Nic, NicKind
from moefabric.core.topology import Fabric, nic_at, ocs_port, uplink_rate_bps
from moefabric.core.units import Scale
from tests.support.fabrics import fabric, fabrics

nics = st.builds(
    Nic,
    st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True),
    st.sampled_from(NicKind),
    st.integers(0, 63),
)


@given(nics)
def test_nic_parse_inverts_str(nic: Nic) -> None:
    assert Nic.parse(str(nic)) == nic


@pytest.mark.parametrize(
    ("text", "nic"),
    [("s0/o1", Nic("s0", NicKind.OPTICAL, 1)), ("s12/e0", Nic("s12", NicKind.ELECTRICAL, 0))],
)
def test_nic_name_has_server_kind_and_index(text: str, nic: Nic) -> None:
    assert Nic.parse(text) == nic
    assert str(nic) == text


@pytest.mark.parametrize("text", ["", "s0", "s0/", "/o0", "s0/x1", "s0/o", "s0/o-1", "s0/o1/o2"])
def test_nic_parse_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a NIC such as s0/o1 or s0/e0"):
        Nic.parse(text)


def test_prototype_has_the_names_addresses_and_ports_of_the_paper() -> None:
    wired = fabric()
    assert wired.servers == ("s0", "s1", "s2", "s3")
    assert list(map(str, wired.nics("s2"))) == ["s2/o0", "s2/o1", "s2/o2", "s2/e0"]
    assert wired.addressing.addresses("s1")[:2] == ("10.0.1.1", "10.0.1.2")
    assert wired.addressing.addresses("s1")[-1] == "10.0.1.8"
    assert wired.addressing.mac("s3") == "02:00:0a:00:03:01"
    assert wired.switches == ("s0", "s1", "s2", "s3", "leaf0")
    assert wired.openflow.ports("s0") == {"host": 1, "s0/o0": 2, "s0/o1": 3, "s0/o2": 4, "s0/e0": 5}
    assert wired.openflow.ports("leaf0") == {"s0/e0": 1, "s1/e0": 2, "s2/e0": 3, "s3/e0": 4}
    assert ocs_port(wired, Nic("s3", NicKind.OPTICAL, 2)) == 12


def test_second_region_continues_server_numbers_and_has_its_own_addresses() -> None:
    wired = fabric(regions=(2, 3))
    assert wired.servers == ("s0", "s1", "s2", "s3", "s4")
    assert wired.addressing.addresses("s2")[0] == "10.1.0.1"
    assert str(wired.addressing.prefix("r1")) == "10.1.0.0/16"
    assert str(wired.addressing.prefix("*")) == "10.0.0.0/8"
    assert ocs_port(wired, Nic("s2", NicKind.OPTICAL, 0)) == 1, "each OCS counts its own inputs"


def test_one_leaf_needs_no_spine_and_no_electrical_nic_needs_no_leaf() -> None:
    assert fabric(eps=Eps(4, spines=2)).spines == ()
    assert fabric(electrical=0).leaves == ()


def test_uplink_rate_is_that_of_a_leafs_nics_over_the_oversubscription() -> None:
    wired = fabric(0, 4, eps=Eps(servers_per_leaf=2, spines=2, oversubscription=2.0))
    assert wired.leaves == ("leaf0", "leaf1")
    assert list(wired.eps_wiring.uplinks) == [
        ("leaf0", "spine0"),
        ("leaf0", "spine1"),
        ("leaf1", "spine0"),
        ("leaf1", "spine1"),
    ]
    assert uplink_rate_bps(wired) == 2 * 4 * 100e9 / 2.0 / 2
    under = dict.fromkeys(nic.server for nic in wired.eps_wiring.nics_under("leaf1"))
    assert list(under) == ["s2", "s3"]
    assert wired.eps_wiring.leaf_of("s1") == "leaf0"


@given(fabrics())
def test_ports_are_numbered_from_one_without_gaps(wired: Fabric) -> None:
    for switch in wired.switches:
        assert sorted(wired.openflow.ports(switch).values()) == list(
            range(1, len(wired.openflow.ports(switch)) + 1)
        )


@given(fabrics())
def test_every_link_has_a_port_at_both_ends(wired: Fabric) -> None:
    for leaf, spine in wired.eps_wiring.uplinks:
        assert spine in wired.openflow.ports(leaf)
        assert leaf in wired.openflow.ports(spine)
    plugged = Counter(
        name for leaf in wired.leaves for name in wired.openflow.ports(leaf) if "/" in name
    )
    assert plugged == Counter(
        str(nic) for server in wired.servers for nic in wired.electrical_nics(server)
    )


@given(fabrics())
def test_addresses_macs_and_datapath_ids_are_unique(wired: Fabric) -> None:
    addresses = [
        address for server in wired.servers for address in wired.addressing.addresses(server)
    ]
    assert len(set(addresses)) == len(wired.servers) * wired.gpus
    assert len({wired.addressing.mac(server) for server in wired.servers}) == len(wired.servers)
    assert len({wired.openflow.dpid(switch) for switch in wired.switches}) == len(wired.switches)


@given(fabrics())
def test_nic_at_inverts_ocs_port(wired: Fabric) -> None:
    for region in wired.regions:
        optical = [nic for server in region.servers for nic in wired.optical_nics(server)]
        assert [ocs_port(wired, nic) for nic in optical] == list(range(1, len(optical) + 1))
        assert [nic_at(wired, region, ocs_port(wired, nic)) for nic in optical] == optical


def test_byte_scaling_divides_rates_and_bytes_and_leaves_times() -> None:
    scale = Scale(bytes=500)
    assert (scale.rate_bps(100e9), scale.size_bytes(1e6), scale.wall_ns(7)) == (200e6, 2000, 7)


def test_dilation_divides_rates_again_and_stretches_times() -> None:
    scale = Scale(bytes=500, dilation=2)
    assert (scale.rate_bps(100e9), scale.size_bytes(1e6), scale.wall_ns(7)) == (100e6, 2000, 14)


@pytest.mark.parametrize(("model", "sent"), [(0, 0), (1, 1), (499, 1), (750.1, 2)])
def test_scale_keeps_at_least_one_byte(model: float, sent: int) -> None:
    assert Scale(bytes=500).size_bytes(model) == sent


@given(st.floats(1, 1e4), st.floats(1, 100), st.floats(1e6, 1e12), st.floats(1e9, 1e13))
def test_scaled_bytes_at_a_scaled_rate_take_the_dilated_time(
    factor: float, dilation: float, size: float, rate: float
) -> None:
    scale = Scale(factor, dilation)
    took_s = 8 * scale.size_bytes(size) / scale.rate_bps(rate)
    assert took_s == pytest.approx(8 * size / rate * dilation, rel=1e-2)


@pytest.mark.parametrize(
    ("servers_per_leaf", "spines", "oversubscription"), [(0, 0, 1.0), (4, -1, 1.0), (4, 1, 0.0)]
)
def test_eps_refuses_values_that_no_switch_has(
    servers_per_leaf: int, spines: int, oversubscription: float
) -> None:
    with pytest.raises(ValueError, match=r"servers on a leaf|oversubscribed"):
        Eps(servers_per_leaf, spines, oversubscription)
