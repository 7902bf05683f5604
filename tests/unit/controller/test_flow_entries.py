"""Flow entries of rules, and the routes that packets take by them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.controller.southbound.openflow.flow_entries import FlowEntry, flow_entry
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.errors import ControlError
from moefabric.core.flows import Flow
from moefabric.core.nic import Nic
from moefabric.core.ocs import Ocs
from moefabric.core.routes import route
from moefabric.core.rules import Rule, RuleChange, direct_rules
from moefabric.core.topology import Fabric, Region
from tests.support.memory_switches import MemorySwitches

NET = 10 << 24


def fabric(
    servers: int = 4,
    optical: int = 3,
    electrical: int = 1,
    per_leaf: int = 4,
    spines: int = 0,
    regions: int = 1,
) -> Fabric:
    wired = tuple(
        Region(
            f"r{r}",
            r,
            tuple(f"s{r * servers + i}" for i in range(servers)),
            Ocs(f"ocs{r}", servers * optical) if optical else None,
        )
        for r in range(regions)
    )
    return Fabric(
        "f", wired, 2, optical, electrical, 1e9, Eps(per_leaf, spines) if electrical else None
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(
            Rule("s0", "*", "s0/e0"), FlowEntry(0x0808, NET, 8, None, 5), id="all-else-to-the-eps"
        ),
        pytest.param(
            Rule("s0", "s0", "host"),
            FlowEntry(0x4818, NET, 24, None, 1),
            id="own-addresses-to-the-host",
        ),
        pytest.param(
            Rule("s0", "s2", "s0/o1", light=True),
            FlowEntry(0x2818, NET | 2 << 8, 24, 0, 3),
            id="unmarked-onto-light",
        ),
        pytest.param(
            Rule("s0", "s2", "s0/o1", "o1", light=True),
            FlowEntry(0x3818, NET | 2 << 8, 24, 2, 3),
            id="marked-onto-light",
        ),
        pytest.param(
            Rule("leaf0", "s3", "s3/e0", "e0"),
            FlowEntry(0x1818, NET | 3 << 8, 24, 17, 4),
            id="marked-down-a-leaf",
        ),
    ],
)
def test_flow_entry_of_a_rule(rule: Rule, expected: FlowEntry) -> None:
    assert flow_entry(fabric(), rule) == expected


def test_own_packets_from_other_regions_get_the_mac_of_the_host() -> None:
    own = flow_entry(fabric(regions=2), Rule("s5", "s5", "host"))
    assert own == FlowEntry(0x4818, NET | 1 << 16 | 1 << 8, 24, None, 1, mac=0x02000A010101)


def test_entry_replaces_one_with_the_same_match() -> None:
    before, after = Rule("s0", "s2", "s0/o1", light=True), Rule("s0", "s2", "s0/o2", light=True)
    assert flow_entry(fabric(), before).match == flow_entry(fabric(), after).match


@st.composite
def lit_fabrics(draw: st.DrawFn) -> tuple[Fabric, CircuitSet]:
    wired = fabric(
        draw(st.integers(2, 4)),
        draw(st.integers(0, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 3)),
        draw(st.integers(1, 2)),
    )
    circuits: list[Circuit] = []
    for region in wired.regions:
        nics = draw(
            st.permutations(
                [nic for server in region.servers for nic in wired.optical_nics(server)]
            )
        )
        pairs = list(zip(nics[::2], nics[1::2], strict=False))
        circuits += [
            Circuit(a, b)
            for a, b in pairs[: draw(st.integers(0, len(pairs)))]
            if a.server != b.server
        ]
    return wired, CircuitSet.of(circuits)


@given(lit_fabrics())
def test_marked_packets_follow_the_routes_of_the_fluid_model(
    situation: tuple[Fabric, CircuitSet],
) -> None:
    wired, lit = situation
    switches = MemorySwitches(wired)
    switches.apply(RuleChange.between([], direct_rules(lit)))
    for a in wired.servers:
        for b in (server for server in wired.servers if server != a):
            for path in (nic.path for nic in wired.nics(a)):
                assert switches.route(a, b, path, lit) == route(
                    wired, lit, Flow(a, b, path, 1.0)
                ), f"{a} to {b} by {path}"


@given(lit_fabrics())
def test_unmarked_packets_use_circuits_of_their_pair(situation: tuple[Fabric, CircuitSet]) -> None:
    wired, lit = situation
    switches = MemorySwitches(wired)
    switches.apply(RuleChange.between([], direct_rules(lit)))
    for a in wired.servers:
        for b in (server for server in wired.servers if server != a):
            way = switches.route(a, b, None, lit)
            assert way, f"{a} to {b} is dropped"
            assert ("ocs" in way[0]) == bool(lit.between(a, b))


LIT = CircuitSet.of(["s0/o0~s1/o1", "s0/o2~s2/o0"])


def test_rules_for_dark_circuits_drop_packets() -> None:
    switches = MemorySwitches(fabric())
    switches.apply(RuleChange.between([], direct_rules(LIT)))
    assert switches.route("s0", "s1", "o0", CircuitSet()) == ()


def test_marked_packets_without_circuit_rules_use_the_eps() -> None:
    assert MemorySwitches(fabric()).route("s0", "s1", "o0", LIT) == (
        ("s0/e0", "leaf0"),
        ("leaf0", "s1/e0"),
    )


def test_packets_marked_for_the_eps_avoid_circuits() -> None:
    switches = MemorySwitches(fabric())
    switches.apply(RuleChange.between([], direct_rules(LIT)))
    assert switches.route("s0", "s1", "e0", LIT) == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    assert switches.route("s0", "s1", None, LIT) == (("s0/o0", "ocs"), ("ocs", "s1/o1"))


def test_apply_names_absent_switches_and_changes_the_others() -> None:
    switches = MemorySwitches(fabric())
    switches.gone = {"s1"}
    with pytest.raises(ControlError, match="s1: not connected"):
        switches.apply(RuleChange.between([], direct_rules(LIT)))
    assert {rule.switch for rule in switches.circuit_rules} == {"s0", "s2"}


def test_packets_without_electrical_nics_and_circuits_are_dropped() -> None:
    assert MemorySwitches(fabric(electrical=0)).route("s0", "s1", None, LIT) == ()
    assert Nic.parse("s0/o0") in fabric(electrical=0).nics("s0")
