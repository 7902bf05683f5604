"""Simulators in processes of their own: availability, answers, failures, and real runs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from moefabric_studies.oracle import own_simulators, processes
from moefabric_studies.oracle.processes import SimulatorError, SimulatorProcess, completion_of
from moefabric_studies.oracle.results import Completion
from moefabric_studies.oracle.scenario import (
    Cable,
    FlowStep,
    Outage,
    RoutedFlow,
    Scenario,
    Transport,
)

OPTIONAL = "optional: "  # as tests/conftest.py spells it
SERVERS = ("s0", "s1", "s2")
ALL_TO_ALL = Scenario(
    "all-to-all",
    9000,
    tuple(Cable((f"{server}/e0", "leaf0"), 100e9) for server in SERVERS),
    (
        FlowStep(
            tuple(
                RoutedFlow(a, b, ((f"{a}/e0", "leaf0"), ("leaf0", f"{b}/e0")), 1e6, 0.0, 45e9)
                for a in SERVERS
                for b in SERVERS
                if a != b
            )
        ),
    ),
)

LATE = tuple(replace(flow, start_s=1e-3) for flow in ALL_TO_ALL.flows)


def relayed(*flows: tuple[str, str]) -> Scenario:
    """Return a scenario of 4 MB over circuits only: each flow has a tree and the servers on it."""
    routed = [
        RoutedFlow(
            way[0],
            way[-1],
            tuple((f"{a}/{b}", f"{b}/{a}") for a, b in pairwise(way)),
            4e6,
            tree=tree,
        )
        for tree, way in flows
    ]
    links = {(min(link), max(link)): None for flow in routed for link in flow.route}
    cables = tuple(Cable(ends, 100e9) for ends in links)
    return Scenario("relayed", 9000, cables, (FlowStep(tuple(routed)),))


TREES = relayed(("r1", "abde"), ("r2", "acde"), ("", "de"))


def needed(simulator: SimulatorProcess) -> SimulatorProcess:
    """Return a simulator, or skip the test and name what is missing."""
    if simulator.missing:
        pytest.skip(OPTIONAL + simulator.missing)
    return simulator


def test_completion_ends_with_its_last_flow() -> None:
    flows = [{"end_s": 1.0, "sent_packets": 5, "lost_packets": 2}, {"end_s": 3.0}]
    completion = completion_of({"flows": flows, "wall_s": 0.5})
    assert (completion.last_s, completion.sent_packets, completion.lost_packets) == (3.0, 5, 2)


def test_completion_has_no_end_while_a_flow_has_none() -> None:
    assert Completion(ends_s=(1.0, None), sent_packets=0, lost_packets=0, wall_s=0.0).last_s is None


def test_missing_simulator_is_named_with_its_remedy(tmp_path: Path) -> None:
    assert processes.ns3(tmp_path / "python").missing == (
        f"ns-3 is not in {tmp_path / 'python'}: run packaging/oracle"
    )


def test_interpreter_without_the_simulator_counts_as_missing() -> None:
    absent = SimulatorProcess(
        "absent", Path(sys.executable), "x.py", "no_such_module", "install", ""
    )
    assert absent.missing == f"absent is not in {sys.executable}: install"


def test_failure_of_a_simulator_names_scenario_and_last_line(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text("import sys; sys.exit('no such transport')")
    simulator = SimulatorProcess("ns-3", Path(sys.executable), os.fspath(program), "json", "", "")
    with pytest.raises(SimulatorError, match=r"^ns-3: all-to-all: no such transport$"):
        simulator.run([ALL_TO_ALL.to_json()])


def test_simulator_that_answers_too_little_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "ends.py"
    program.write_text("""print('{"flows": [], "wall_s": 0.0}')""")
    simulator = SimulatorProcess("ns-3", Path(sys.executable), os.fspath(program), "json", "", "")
    with pytest.raises(SimulatorError, match=r"^ns-3: second: exit 0$"):
        simulator.run([{"name": "first"}, {"name": "second"}])


def test_simulations_side_by_side_answer_in_the_order_of_the_scenarios(tmp_path: Path) -> None:
    program = tmp_path / "simulator.py"
    program.write_text(
        "import json, sys\n"
        "for scenario in json.load(sys.stdin):\n"
        "    print(json.dumps({'flows': [{'end_s': scenario['end_s']}], 'wall_s': 0.0}))\n"
    )
    simulator = SimulatorProcess("fake", Path(sys.executable), os.fspath(program), "json", "", "")
    documents = [{"name": str(n), "end_s": float(n)} for n in range(5)]
    shown: list[str] = []
    completions = simulator.run_side_by_side(documents, 2, shown.append)
    assert sorted(shown) == ["", "", "2", "3", "4"]
    assert [completion.ends_s for completion in completions] == [(float(n),) for n in range(5)]


def test_packet_document_allows_twenty_times_the_bound_and_a_second() -> None:
    document = processes.packet_document(ALL_TO_ALL, Transport("cubic"))
    bound_s = own_simulators.fluid_bound_s(ALL_TO_ALL)
    assert document["limit_s"] == pytest.approx(20 * bound_s + 1)
    assert document["transport"]["congestion_control"] == "cubic"


def test_simgrid_shares_links_as_the_model_does() -> None:
    simgrid = needed(processes.simgrid())
    [completion] = simgrid.run([ALL_TO_ALL.to_json()])
    expected = own_simulators.max_min_ends_s(ALL_TO_ALL)
    assert completion.ends_s == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_ns3_completes_an_all_to_all_near_the_models_time_and_loses_packets_in_the_dark() -> None:
    ns3 = needed(processes.ns3())
    outage = Outage(("s0/e0", "leaf0"), 50e-6, 500e-6)
    dark = Scenario("dark", 9000, ALL_TO_ALL.cables, ALL_TO_ALL.steps, (outage,))
    flow = replace(ALL_TO_ALL.flows[0], bytes=12e3, rate_bps=96e6)  # 1.3 segments in 1 ms
    small = replace(ALL_TO_ALL, name="small", steps=(FlowStep((flow,)),))
    cubic = processes.packet_document(ALL_TO_ALL, Transport("cubic"))
    completions = ns3.run(
        [
            cubic,
            processes.packet_document(ALL_TO_ALL, Transport("paced")),
            processes.packet_document(ALL_TO_ALL, Transport("dctcp")),
            processes.packet_document(dark, Transport("cubic")),
            cubic,
            processes.packet_document(small, Transport("paced")),
        ]
    )
    bound_s = own_simulators.fluid_bound_s(ALL_TO_ALL)
    for completion in completions[:3]:
        assert completion.lost_packets == 0
        assert completion.last_s is not None
        assert bound_s < completion.last_s < 1.35 * bound_s
    assert completions[3].lost_packets > 0
    assert completions[3].last_s is not None
    assert completions[3].last_s > outage.until_s
    assert completions[4].ends_s == completions[0].ends_s
    assert completions[5].last_s == pytest.approx(1e-3, rel=0.02)


@pytest.mark.slow
def test_ns3_forwards_by_relay_tree_through_the_switch_queues_of_servers() -> None:
    ns3 = needed(processes.ns3())
    paced = [replace(flow, rate_bps=30e9) for flow in TREES.flows]
    bound_s = own_simulators.fluid_bound_s(TREES)
    kept, dropped, smooth = ns3.run(
        [
            processes.packet_document(TREES, Transport("cubic")),
            processes.packet_document(TREES, Transport("cubic", 20)),
            processes.packet_document(
                replace(TREES, steps=(FlowStep(tuple(paced)),)), Transport("paced")
            ),
        ]
    )
    for completion in (kept, smooth):
        assert completion.lost_packets == 0
        assert completion.last_s is not None
        assert bound_s < completion.last_s < 1.35 * bound_s
    assert dropped.lost_packets > 0


@pytest.mark.slow
def test_ns3_refuses_two_ways_to_a_port_without_relay_trees() -> None:
    ns3 = needed(processes.ns3())
    crossed = relayed(("", "abde"), ("", "acde"))
    documents = [
        processes.packet_document(case, Transport("cubic")) for case in (ALL_TO_ALL, crossed)
    ]
    with pytest.raises(SimulatorError, match="ns-3: relayed: a would send to e/d by two NICs"):
        ns3.run(documents)


@pytest.mark.slow
def test_acknowledgements_pass_the_data_of_fair_hosts_in_ns3() -> None:
    ns3 = needed(processes.ns3())
    short, long = (
        (("s0/e0", "leaf0"), ("leaf0", "s1/e0")),
        (("s1/e0", "leaf0"), ("leaf0", "s2/e0")),
    )
    flows = (RoutedFlow("s0", "s1", short, 4e6), RoutedFlow("s1", "s2", long, 16e6))
    case = Scenario("acknowledged", 9000, ALL_TO_ALL.cables, (FlowStep(flows),))
    fifo, fair = ns3.run(
        [
            processes.packet_document(case, Transport("dctcp", fair_hosts=fair))
            for fair in (False, True)
        ]
    )
    assert fair.lost_packets == 0
    assert None not in (*fifo.ends_s, *fair.ends_s)
    assert fair.ends_s[0] < 0.8 * fifo.ends_s[0]  # type: ignore[operator]


@pytest.mark.slow
def test_warm_connections_end_sooner_in_ns3_and_count_from_the_start_of_their_flows() -> None:
    ns3 = needed(processes.ns3())
    new, warm, late, trees = ns3.run(
        [
            processes.packet_document(case, Transport("dctcp", warm_bytes=warm))
            for case, warm in (
                (ALL_TO_ALL, 0),
                (ALL_TO_ALL, 128 * 1024),
                (replace(ALL_TO_ALL, steps=(FlowStep(LATE),)), 128 * 1024),
                (TREES, 128 * 1024),
            )
        ]
    )
    bound_s = own_simulators.fluid_bound_s(ALL_TO_ALL)
    assert new.last_s is not None
    assert warm.last_s is not None
    assert late.last_s is not None
    assert bound_s < warm.last_s < new.last_s
    assert late.last_s == pytest.approx(warm.last_s + 1e-3, rel=0.01)
    assert None not in trees.ends_s, "sockets open when the queues of servers are ready"
