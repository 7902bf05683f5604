"""Flow entries: what each rule is to a switch, and that a packet walked through them goes where the fluid model says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.southbound.openflow.entries import Entry, entry
from controller.southbound.openflow.memory import MemorySwitches
from moefabric.circuits import Circuit, CircuitSet
from moefabric.errors import ControlError
from moefabric.flows import Flow
from moefabric.fluid import route
from moefabric.rules import Rule, RuleChange, light_rules
from moefabric.topology import Eps, Fabric, Nic, Ocs, Region

NET = 10 << 24


def fabric(
    servers: int = 4,
    optical: int = 3,
    electrical: int = 1,
    per_leaf: int = 4,
    spines: int = 0,
    regions: int = 1,
) -> Fabric:
    made = tuple(
        Region(
            f"r{r}",
            r,
            tuple(f"s{r * servers + i}" for i in range(servers)),
            Ocs(f"ocs{r}", servers * optical) if optical else None,
        )
        for r in range(regions)
    )
    return Fabric("f", made, 2, optical, electrical, 1e9, Eps(per_leaf, spines) if electrical else None)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(Rule("s0", "*", "s0/e0"), Entry(0x0808, NET, 8, None, 5), id="all-else-to-the-eps"),
        pytest.param(
            Rule("s0", "s0", "host"), Entry(0x4818, NET, 24, None, 1), id="own-addresses-to-the-host"
        ),
        pytest.param(
            Rule("s0", "s2", "s0/o1", light=True),
            Entry(0x2818, NET | 2 << 8, 24, 0, 3),
            id="unmarked-onto-light",
        ),
        pytest.param(
            Rule("s0", "s2", "s0/o1", "o1", light=True),
            Entry(0x3818, NET | 2 << 8, 24, 2, 3),
            id="marked-onto-light",
        ),
        pytest.param(
            Rule("leaf0", "s3", "s3/e0", "e0"),
            Entry(0x1818, NET | 3 << 8, 24, 17, 4),
            id="marked-down-a-leaf",
        ),
    ],
)
def test_a_rule_is_the_entry(rule: Rule, expected: Entry) -> None:
    assert entry(fabric(), rule) == expected


def test_a_rule_that_points_elsewhere_replaces_its_namesake() -> None:
    before, after = Rule("s0", "s2", "s0/o1", light=True), Rule("s0", "s2", "s0/o2", light=True)
    assert entry(fabric(), before).match == entry(fabric(), after).match


@st.composite
def lit_fabrics(draw: st.DrawFn) -> tuple[Fabric, CircuitSet]:
    made = fabric(
        draw(st.integers(2, 4)),
        draw(st.integers(0, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 3)),
        draw(st.integers(1, 2)),
    )
    circuits: list[Circuit] = []
    for region in made.regions:
        nics = draw(st.permutations([nic for server in region.servers for nic in made.optical_nics(server)]))
        pairs = list(zip(nics[::2], nics[1::2], strict=False))
        circuits += [
            Circuit(a, b) for a, b in pairs[: draw(st.integers(0, len(pairs)))] if a.server != b.server
        ]
    return made, CircuitSet.of(circuits)


@given(lit_fabrics())
@settings(max_examples=60, deadline=None)
def test_every_marked_packet_goes_the_way_that_the_fluid_model_counts_on(
    situation: tuple[Fabric, CircuitSet],
) -> None:
    made, lit = situation
    switches = MemorySwitches(made)
    switches.change(RuleChange.between([], light_rules(lit)))
    for a in made.servers:
        for b in (server for server in made.servers if server != a):
            for path in (nic.path for nic in made.nics(a)):
                assert switches.way(a, b, path, lit) == route(made, lit, Flow(a, b, path, 1.0)), (
                    f"{a} to {b} by {path}"
                )


@given(lit_fabrics())
@settings(max_examples=40, deadline=None)
def test_an_unmarked_packet_follows_the_light_if_its_pair_has_any(
    situation: tuple[Fabric, CircuitSet],
) -> None:
    made, lit = situation
    switches = MemorySwitches(made)
    switches.change(RuleChange.between([], light_rules(lit)))
    for a in made.servers:
        for b in (server for server in made.servers if server != a):
            way = switches.way(a, b, None, lit)
            assert way, f"{a} to {b} is dropped"
            assert ("ocs" in way[0]) == bool(lit.between(a, b))


LIT = CircuitSet.of(["s0/o0~s1/o1", "s0/o2~s2/o0"])


def test_light_rules_off_the_light_lead_nowhere() -> None:
    switches = MemorySwitches(fabric())
    switches.change(RuleChange.between([], light_rules(LIT)))
    assert switches.way("s0", "s1", "o0", CircuitSet()) == ()


def test_without_light_rules_a_dark_path_is_the_eps() -> None:
    assert MemorySwitches(fabric()).way("s0", "s1", "o0", LIT) == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))


def test_spilled_bytes_stay_on_the_eps_while_their_pair_has_light() -> None:
    switches = MemorySwitches(fabric())
    switches.change(RuleChange.between([], light_rules(LIT)))
    assert switches.way("s0", "s1", "e0", LIT) == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    assert switches.way("s0", "s1", None, LIT) == (("s0/o0", "ocs"), ("ocs", "s1/o1"))


def test_a_switch_that_is_gone_is_named_and_the_others_have_changed() -> None:
    switches = MemorySwitches(fabric())
    switches.gone = {"s1"}
    with pytest.raises(ControlError, match="s1: not connected"):
        switches.change(RuleChange.between([], light_rules(LIT)))
    assert {rule.switch for rule in switches.light} == {"s0", "s2"}


def test_a_nic_without_a_wire_is_no_way() -> None:
    assert MemorySwitches(fabric(electrical=0)).way("s0", "s1", None, LIT) == ()
    assert Nic.parse("s0/o0") in fabric(electrical=0).nics("s0")
