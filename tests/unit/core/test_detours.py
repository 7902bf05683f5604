"""Lanes of relay trees: where they lead, and which circuits they use."""

from collections import Counter
from collections.abc import Collection
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.detours import detoured_lanes
from moefabric.core.forwarding import circuit_rules, relay_trees, tree_route
from moefabric.core.paths import MARKS, dscp, marks_needed, relay_lanes, relay_path, relay_paths
from tests.support.planner_cases import even_circuits, forwarding_fabric


@st.composite
def circuit_sets(draw: st.DrawFn) -> CircuitSet:
    """Circuits of 3 to 6 servers, at random."""
    wired = forwarding_fabric(draw(st.integers(3, 6)), draw(st.integers(1, 6)), 1)
    nics = [nic for server in wired.servers for nic in wired.optical_nics(server)]
    shuffled = draw(st.permutations(nics))
    pairs = zip(shuffled[::2], shuffled[1::2], strict=False)
    return CircuitSet(frozenset(Circuit(a, b) for a, b in pairs if a.server != b.server))


def check_lanes(lit: CircuitSet, lanes: int) -> None:
    """Follow the packets of every lane; they arrive without meeting a server twice."""
    far_end = {near: far for circuit in lit for near, far in circuit.directions}
    trees = relay_trees(lit, lanes)
    for tree in trees.values():
        for src, dst in permutations(filter(tree.reaches, trees), 2):
            for lane in range(lanes):
                crossed = [src]
                while crossed[-1] != dst:
                    crossed.append(far_end[tree.nic(crossed[-1], dst, lane)].server)
                    assert len(set(crossed)) == len(crossed)


@given(circuit_sets(), st.integers(1, 6))
def test_no_packet_loops_over_random_circuits(lit: CircuitSet, lanes: int) -> None:
    check_lanes(lit, lanes)


@pytest.mark.parametrize("lanes", [2, 3, 4])
@pytest.mark.parametrize(("servers", "optical"), [(4, 4), (5, 6), (6, 7), (8, 3), (10, 7)])
def test_no_packet_loops_over_even_circuits(servers: int, optical: int, lanes: int) -> None:
    check_lanes(even_circuits(forwarding_fabric(servers, optical, 0)), lanes)


def most_circuits(routes: Collection[tuple[tuple[str, str], ...]]) -> float:
    """Return how many circuits' rates routes carry together, each link one circuit's."""
    links = {link: n for n, link in enumerate(sorted({link for r in routes for link in r}))}
    uses = np.zeros((len(links), len(routes)))
    for column, links_of_route in enumerate(routes):
        uses[[links[link] for link in links_of_route], column] = 1.0
    solution = linprog(-np.ones(len(routes)), A_ub=uses, b_ub=np.ones(len(links)))
    assert solution.success, solution.message
    return -float(solution.fun)


@pytest.mark.parametrize(
    ("servers", "optical"),
    [(4, 4), (4, 5), (4, 7), (5, 6), (6, 8), (8, 9), (8, 6), (10, 8), (12, 12)],
)
def test_a_pair_alone_uses_all_circuits_of_its_servers(servers: int, optical: int) -> None:
    """Those of the server with fewer circuits: odd regions leave a NIC dark."""
    wired = forwarding_fabric(servers, optical, 1)
    lit, lanes = even_circuits(wired), relay_lanes(wired, wired.regions[0])
    circuits_of = Counter(nic.server for nic in lit.nics)
    for src, dst in permutations(wired.servers, 2):
        routes = {
            tree_route(lit, src, dst, root, lane, lanes)
            for root, lane in product(relay_trees(lit, lanes), range(lanes))
            if root not in {src, dst}
        }
        for circuit in lit.between(src, dst):
            ends = str(circuit.end_at(src)), str(circuit.end_at(dst))
            routes.add(((ends[0], "ocs"), ("ocs", ends[1])))
        fewest = min(circuits_of[src], circuits_of[dst])
        assert most_circuits(routes) == pytest.approx(fewest), (src, dst)


@pytest.mark.parametrize(("servers", "optical"), [(4, 3), (4, 6), (8, 7), (17, 8)])
def test_even_mesh_and_large_region_have_no_detours(servers: int, optical: int) -> None:
    lit = even_circuits(forwarding_fabric(servers, optical, 0))
    names = sorted({nic.server for nic in lit.nics})
    parallel = {a: {b: len(lit.between(a, b)) for b in names if b != a} for a in names}
    assert not any(detoured_lanes(parallel, 2).values())


@pytest.mark.parametrize(
    ("servers", "optical", "electrical", "lanes"),
    [
        pytest.param(8, 7, 1, 1, id="mesh"),
        pytest.param(4, 6, 1, 2, id="two-circuits-a-pair"),
        pytest.param(4, 4, 1, 4, id="one-or-two"),
        pytest.param(4, 7, 1, 8, id="two-or-three"),
        pytest.param(8, 4, 2, 2, id="fewer-circuits-than-pairs"),
        pytest.param(16, 16, 1, 2, id="no-marks-for-four-lanes"),
        pytest.param(17, 7, 1, 1, id="no-detours-in-a-large-region"),
    ],
)
def test_trees_have_as_many_lanes_as_circuits_need_and_marks_suffice_for(
    servers: int, optical: int, electrical: int, lanes: int
) -> None:
    wired = forwarding_fabric(servers, optical, electrical)
    assert relay_lanes(wired, wired.regions[0]) == lanes
    paths = {relay_path(wired, root, n) for root in wired.servers for n in range(lanes)}
    assert {*relay_paths(wired, "s0", "s1")} < paths
    every = [*paths, *(nic.path for nic in wired.nics("s0"))]
    assert len({dscp(wired, path) for path in every}) == len(every) == marks_needed(wired)
    assert {rule.path for rule in circuit_rules(wired, even_circuits(wired))} > paths
    assert max(dscp(wired, path) for path in every) <= MARKS
