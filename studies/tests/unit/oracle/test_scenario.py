"""Scenarios of other simulators: routes, cables, scaling and the model's own answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from moefabric_studies.oracle import own_simulators
from moefabric_studies.oracle.scenario import (
    Cable,
    FlowStep,
    RoutedFlow,
    Scenario,
    Transport,
    physical_route,
    routed_flows,
    scenario,
)

from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.flows import Flow
from moefabric.core.ocs import Ocs
from moefabric.core.routes import route
from moefabric.core.topology import Fabric, Region
from tests.support.fabrics import MESH, fabric

SERVERS = ("s0", "s1", "s2")
FABRIC = Fabric(
    "lab", (Region("r0", 0, SERVERS, Ocs("ocs0", 6)),), 8, 1, 1, 100e9, Eps(3), mtu=9000
)
LIT = CircuitSet.of(["s0/o0~s1/o0"])
FLOWS = (Flow("s0", "s1", "o0", 4e6), Flow("s1", "s0", "o0", 2e6), Flow("s0", "s2", "e0", 1e6))


def routed(*steps: tuple[Flow, ...]) -> Scenario:
    """Return a scenario whose steps follow one another."""
    return scenario(
        "case",
        FABRIC,
        [
            FlowStep(routed_flows(FABRIC, LIT, flows, 1e-3), after=(number - 1,) if number else ())
            for number, flows in enumerate(steps)
        ],
    )


def test_circuit_is_one_cable_and_an_eps_route_crosses_the_leaf() -> None:
    case = routed(FLOWS)
    assert [flow.route for flow in case.flows] == [
        (("s0/o0", "s1/o0"),),
        (("s1/o0", "s0/o0"),),
        (("s0/e0", "leaf0"), ("leaf0", "s2/e0")),
    ]
    assert [cable.ends for cable in case.cables] == [
        ("leaf0", "s0/e0"),
        ("leaf0", "s2/e0"),
        ("s0/o0", "s1/o0"),
    ]


def test_flow_without_a_route_is_refused() -> None:
    unlinked = Fabric("lab", (Region("r0", 0, SERVERS, Ocs("ocs0", 6)),), 8, 1, 0, 100e9, None)
    with pytest.raises(ValueError, match="s0 has no route to s2 by o0"):
        routed_flows(unlinked, LIT, [Flow("s0", "s2", "o0", 1.0)], 1e-3)


def test_pace_of_a_routed_flow_carries_its_bytes_in_the_given_seconds() -> None:
    assert [flow.rate_bps for flow in routed(FLOWS).flows] == [32e9, 16e9, 8e9]


def test_scaled_scenario_keeps_rates_and_scales_bytes_and_times() -> None:
    half = routed(FLOWS).scaled(0.5)
    assert [flow.bytes for flow in half.flows] == [2e6, 1e6, 0.5e6]
    assert [flow.rate_bps for flow in half.flows] == [32e9, 16e9, 8e9]
    assert {cable.rate_bps for cable in half.cables} == {100e9}


def test_scenario_survives_json_and_names_the_transport() -> None:
    document = json.loads(json.dumps(routed(FLOWS).to_json()))
    assert document["steps"][0]["flows"][2]["route"] == [["s0/e0", "leaf0"], ["leaf0", "s2/e0"]]
    assert document["cables"][2] == {"ends": ["s0/o0", "s1/o0"], "rate_bps": 1e11, "delay_s": 1e-6}
    assert Transport("paced").name == "paced"
    assert Transport("cubic", 100).name == "CUBIC, 100 packets"
    assert Transport("cubic", min_rto_s=0.2).name == "CUBIC, 1,000 packets, RTO 200 ms"


def test_max_min_flows_share_a_port_and_then_have_it_alone() -> None:
    cables = tuple(Cable((f"s{n}/e0", "leaf0"), 8e9, 0.0) for n in range(3))
    flows = tuple(
        RoutedFlow(src, "s2", ((f"{src}/e0", "leaf0"), ("leaf0", "s2/e0")), size)
        for src, size in (("s0", 1e6), ("s1", 3e6))
    )
    case = Scenario("incast", 9000, cables, (FlowStep(flows),))
    goodput = case.goodput_share
    ends = own_simulators.max_min_ends_s(case, store_and_forward=False)
    assert ends == pytest.approx([2e-3 / goodput, 4e-3 / goodput])
    assert own_simulators.fluid_bound_s(case) == pytest.approx(4e-3 / goodput)
    assert own_simulators.alone_ends_s(case) == pytest.approx([1e-3 / goodput, 3e-3 / goodput])


def test_latency_adds_propagation_and_one_stored_frame_per_switch() -> None:
    case = routed(FLOWS)
    late = own_simulators.max_min_ends_s(case)
    alone = own_simulators.alone_ends_s(case)
    frame_s = 9014 * 8 / 100e9
    expected = [1e-6, 1e-6, 2e-6 + frame_s]
    assert [a - b for a, b in zip(late, alone, strict=True)] == pytest.approx(expected)


def test_paced_flows_end_when_their_pace_says() -> None:
    bare = own_simulators.max_min_ends_s(routed(FLOWS[:2]), paced=True)
    assert bare == pytest.approx([1e-3 + 1e-6] * 2)


def test_steps_wait_for_earlier_ones() -> None:
    alone, twice = routed(FLOWS[:1]), routed(FLOWS[:1], FLOWS[:1])
    (once,) = own_simulators.max_min_ends_s(alone)
    assert own_simulators.max_min_ends_s(twice) == pytest.approx([once, 2 * once])


def test_forwarding_is_no_cable() -> None:
    wired = replace(fabric(3, 1), forwarding=True)
    limited, lit = replace(wired, forwarding_rate_bps=50e9), CircuitSet.of(MESH)
    relayed = Flow("s0", "s1", "r2", 1)
    links = physical_route(route(limited, lit, relayed))
    assert links == physical_route(route(wired, lit, relayed))
