"""Splits with forwarding: laws on random regions, and the optimum by programs of the tests' own."""

import json
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import coo_array

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.flows import Share, flows
from moefabric.core.forwarding import tree_route
from moefabric.core.ocs import Ocs
from moefabric.core.paths import relay_lanes, relay_root
from moefabric.core.routes import Link, Route, is_forwarding, route
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Array, circuit_counts, circuit_matrix
from moefabric.planner.even_circuits import EVEN, uniform_order
from moefabric.planner.multihop import multihop_split, relay_linear_program, shares
from moefabric.planner.nic_assignment import assign_nics, usable_ports
from moefabric.planner.pair_order import affordable_pairs
from moefabric.planner.plan import Plan, plan
from moefabric.planner.waterfill import EpsLinks, off_diagonal
from moefabric.simulator.fluid import goodput_bps, predict
from tests.support.paths import EXAMPLES
from tests.support.planner_cases import (
    circuit_rate,
    demand_matrix,
    even_circuits,
    forwarding_fabric,
)
from tests.support.policies import POLICIES

Situation = tuple[Fabric, DemandMatrix, CircuitSet]

SHAPES = ("skewed", "pareto", "sparse")
NEARLY = 1 + 1e-6
WITHIN_A_HUNDREDTH = 1.01
TRACE = EXAMPLES / "data/training-1200-steps.npz"


def fabric(
    servers: int, optical: int, electrical: int, per_leaf: int = 99, oversubscription: float = 1.0
) -> Fabric:
    return forwarding_fabric(servers, optical, electrical, Eps(per_leaf, 2, oversubscription))


def none(region: Region) -> Array:
    return np.zeros((len(region.servers), len(region.servers)))


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """A region with any circuits, perhaps some NICs out, no EPS, one leaf or several, and demand.

    Switches or hosts forward, perhaps at a limited rate.

    Pairs that nothing joins owe nothing.
    """
    servers = draw(st.integers(2, 8))
    per_leaf, narrow = draw(st.integers(1, 8)), draw(st.sampled_from([1.0, 3.0]))
    wired = fabric(servers, draw(st.integers(1, 7)), draw(st.integers(0, 2)), per_leaf, narrow)
    region = wired.regions[0]
    nics = [nic for server in wired.servers for nic in wired.optical_nics(server)]
    wired = wired.without_nics(draw(st.lists(st.sampled_from(nics), max_size=3)))
    slow = draw(st.sampled_from([None, 50e9, 150e9]))
    by_hosts = wired.electrical > 0 and draw(st.booleans())
    wired = replace(wired, forwarding_rate_bps=slow, forwarding_by_hosts=by_hosts)
    pairs = [(i, j) for i in range(servers) for j in range(i + 1, servers)]
    order = draw(st.lists(st.sampled_from(pairs), max_size=28))
    if draw(st.booleans()):
        order = uniform_order(usable_ports(wired, region))
    counts = circuit_counts(servers, affordable_pairs(order, usable_ports(wired, region)))
    lit = assign_nics(wired, region, counts, CircuitSet())
    cells = st.one_of(st.just(0.0), st.floats(1e3, 1e10), st.sampled_from([1e9, 2e9]))
    flat = draw(st.lists(cells, min_size=servers**2, max_size=servers**2))
    owed = np.array(flat).reshape(servers, servers)
    if not wired.electrical:
        joined = np.linalg.matrix_power(counts + np.eye(servers, dtype=np.int64), servers) > 0
        owed *= joined
    return wired, DemandMatrix(wired.servers, owed), lit


def predicted_s(wired: Fabric, lit: CircuitSet, demand: DemandMatrix) -> float:
    """Return when the flows of the split end, by routes and links of the simulator."""
    return predict(wired, lit, flows(wired, lit, multihop_split(wired, demand, lit))).seconds


def forwarded(
    wired: Fabric, lit: CircuitSet, src: str, dst: str, root: str, lane: int, lanes: int
) -> Route:
    """Return the route by a lane or, if hosts forward, over a server next to both ends."""
    if not wired.forwarding_by_hosts:
        return tree_route(lit, src, dst, root, lane, lanes)
    links: list[Link] = []
    for a, b in ((src, root), (root, dst)):
        if not lit.between(a, b):
            return ()
        first = min(lit.between(a, b))
        links += [(str(first.end_at(a)), "ocs"), ("ocs", str(first.end_at(b)))]
    return tuple(links)


def least(wired: Fabric, lit: CircuitSet, demand: DemandMatrix) -> tuple[float, float]:
    """Return the optimum over circuits, the EPS and all relay trees, with the rules' own routes.

    Returns:
        The least time, and the least bytes forwarded in that time, counted at each server.
    """
    servers, rate = demand.servers, circuit_rate(wired)
    eps = EpsLinks.of(wired, servers) if wired.leaves else None
    link_number: dict[tuple[str, str], int] = {}
    columns: list[dict[int, float]] = []
    forwards: list[float] = []
    pair_of_column: list[int] = []
    pairs = list(demand.pairs())
    if not pairs:
        return 0.0, 0.0
    total = sum(owed for _, _, owed in pairs)
    eps_budget = np.zeros(0) if eps is None else eps.budget
    for number, (src, dst, _) in enumerate(pairs):
        between = lit.between(src, dst)
        lanes = relay_lanes(wired, wired.regions[0])
        routes = [
            forwarded(wired, lit, src, dst, root, lane, lanes)
            for root, lane in product(servers, range(lanes))
            if root not in (src, dst)
        ]
        ways = [links for links in routes if len(links) > 2]  # others are the pair's own circuit
        direct: dict[int, float] = {}
        for circuit in between:
            near, far = str(circuit.end_at(src)), str(circuit.end_at(dst))
            for link in ((near, "ocs"), ("ocs", far)):
                direct[link_number.setdefault(link, len(link_number))] = 1 / len(between)
        options = [direct] if direct else []
        for links in ways:
            limits = [*links, *forwarding_links(wired, links)]
            numbers = [link_number.setdefault(link, len(link_number)) for link in limits]
            options.append(dict.fromkeys(numbers, 1.0))
        if eps is not None:
            alone = np.zeros((len(servers), len(servers)))
            alone[servers.index(src), servers.index(dst)] = 1.0
            load = eps.loads(alone)
            options.append({-1 - i: float(load[i]) for i in np.flatnonzero(load).tolist()})
        columns += options
        forwards += [0.0] * bool(direct) + [len(links) / 2 - 1 for links in ways]
        forwards += [0.0] * (eps is not None)
        pair_of_column += [number] * len(options)
    rates = [goodput_bps(wired, link) / 8 for link in link_number]
    capacity = np.concatenate([rates, eps_budget]) / rate
    rows, numbers, values = [], [], []
    for number, column in enumerate(columns):
        for position, share in column.items():
            rows.append(position if position >= 0 else len(link_number) - 1 - position)
            numbers.append(number)
            values.append(share)
    rows += range(len(capacity))
    numbers += [len(columns)] * len(capacity)
    values += (-capacity).tolist()
    shape = len(capacity), len(columns) + 1
    equal = coo_array(
        (np.ones(len(columns)), (pair_of_column, np.arange(len(columns)))),
        shape=(len(pairs), len(columns) + 1),
    )
    known = {
        "A_ub": coo_array((values, (rows, numbers)), shape=shape),
        "b_ub": np.zeros(len(capacity)),
        "A_eq": equal,
        "b_eq": [owed / total for _, _, owed in pairs],
        "method": "highs",
    }
    soonest = linprog([0.0] * len(columns) + [1.0], **known)
    assert soonest.success, soonest.message
    in_time = [(0.0, None)] * len(columns) + [(0.0, soonest.fun * (1 + 1e-7))]
    fewest = linprog([*forwards, 0.0], bounds=in_time, **known)
    assert fewest.success, fewest.message
    return float(soonest.fun) * total / rate, float(fewest.fun) * total


def forwarding_links(wired: Fabric, links: Route) -> list[Link]:
    """Return a link, as the simulator names it, for each server that forwards on a tree's route."""
    forwarders = [near.partition("/")[0] for near, far in links[2:] if far == "ocs"]
    return [(server, "forwarding") for server in forwarders if wired.forwarding_rate_bps]


# --- laws ----------------------------------------------------------------------------------------


@given(situations())
def test_all_bytes_are_delivered_over_circuits_that_are_lit(situation: Situation) -> None:
    wired, demand, lit = situation
    split = multihop_split(wired, demand, lit)
    owed = {(src, dst): size for src, dst, size in demand.pairs()}
    assert [(share.src, share.dst) for share in split] == list(owed)
    for share in split:
        parts = [share.light_bytes, share.eps_bytes, *(size for _, size in share.forwarded)]
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(owed[share.src, share.dst], rel=1e-9)
        assert not share.light_bytes or lit.between(share.src, share.dst)
        assert len({root for root, _ in share.forwarded}) == len(share.forwarded)
        assert not {share.src, share.dst} & {root for root, _ in share.forwarded}


@given(situations())
def test_routes_end_at_their_destination_without_loops(situation: Situation) -> None:
    wired, demand, lit = situation
    sent = flows(wired, lit, multihop_split(wired, demand, lit))
    assume(sent)
    for flow in sent:
        links = [link for link in route(wired, lit, flow) if not is_forwarding(link)]
        servers = [end.partition("/")[0] for link in links for end in link if "/" in end]
        visited = [servers[0], *(far for near, far in pairwise(servers) if near != far)]
        assert (visited[0], visited[-1]) == (flow.src, flow.dst)
        assert len(set(visited)) == len(visited)
        assert (len(visited) > 2) <= (flow.path[0] == "r")
        if wired.forwarding_by_hosts and flow.path[0] == "r":
            assert visited == [flow.src, relay_root(wired, flow.src, flow.path), flow.dst]
            assert all("ocs" in link for link in links)


@given(situations(), st.booleans())
def test_no_link_carries_more_than_it_can_until_the_end(situation: Situation, exact: bool) -> None:
    """The links and routes are those of the simulator, not of the linear program."""
    wired, demand, lit = situation
    lp = relay_linear_program(wired, demand.servers, lit)
    split = lp.split(off_diagonal(demand), exact=exact)
    predicted = predict(wired, lit, flows(wired, lit, shares(demand, split)))
    assert predicted.seconds == pytest.approx(split.seconds, rel=1e-6)


@given(situations())
def test_forwarding_is_never_later_than_spilling_over_the_same_circuits(
    situation: Situation,
) -> None:
    wired, demand, lit = situation
    planned = Plan(wired, wired.regions[0], demand, POLICIES["spill"], lit)
    assert predicted_s(wired, lit, demand) <= planned.predicted_s * NEARLY


@given(situations())
def test_splits_end_within_a_hundredth_of_the_optimum(situation: Situation) -> None:
    wired, demand, lit = situation
    optimum_s, _ = least(wired, lit, demand)
    split = relay_linear_program(wired, demand.servers, lit).split(off_diagonal(demand), exact=True)
    assert split.seconds == pytest.approx(optimum_s, rel=1e-5)
    assert predicted_s(wired, lit, demand) <= optimum_s * WITHIN_A_HUNDREDTH


@given(situations())
def test_equal_arguments_give_an_equal_split(situation: Situation) -> None:
    wired, demand, lit = situation
    first = multihop_split(wired, demand, lit)
    relay_linear_program.cache_clear()
    assert multihop_split(wired, DemandMatrix(demand.servers, demand.array), lit) == first


@given(
    st.integers(17, 22),
    st.integers(2, 6),
    st.integers(0, 2),
    st.integers(0, 10_000),
    st.sampled_from(SHAPES),
)
@settings(max_examples=15, deadline=None)
def test_splits_of_large_regions_end_within_a_hundredth_of_the_optimum(
    servers: int, optical: int, electrical: int, seed: int, shape: str
) -> None:
    wired, owed = fabric(servers, optical, electrical), demand_matrix(servers, seed, shape)
    lp = relay_linear_program(wired, wired.servers, even_circuits(wired))
    exact, fast = lp.split(owed, exact=True), lp.split(owed)
    assert exact.seconds * (1 - 1e-6) <= fast.seconds <= exact.seconds * WITHIN_A_HUNDREDTH


def test_paths_are_added_until_a_large_region_ends_within_a_hundredth_of_the_optimum() -> None:
    """Of this demand, the first paths alone end 1.2 % late."""
    wired, draw = fabric(20, 4, 2), np.random.default_rng(2)
    owed = np.eye(20)[draw.permutation(20)] + 0.02 * draw.random((20, 20))
    np.fill_diagonal(owed, 0.0)
    lp = relay_linear_program(wired, wired.servers, even_circuits(wired))
    exact, fast = lp.split(owed, exact=True), lp.split(owed)
    assert fast.seconds <= exact.seconds * 1.005


# --- optima --------------------------------------------------------------------------------------


def any_paths_s(wired: Fabric, lit: CircuitSet, owed: Array) -> float:
    """Return the least time if bytes may take any path of circuits and the EPS.

    It is a flow of several commodities, one for each source. The EPS is one more node.
    """
    counts, electrical = circuit_matrix(wired.servers, lit), wired.electrical
    servers, eps = len(owed), len(owed)
    arcs = [(a, b, counts[a, b]) for a, b in product(range(servers), repeat=2) if counts[a, b]]
    for server in range(servers) if electrical else ():
        arcs += [(server, eps, electrical), (eps, server, electrical)]
    tail, head, capacity = (np.array(values) for values in zip(*arcs, strict=True))
    source, arc = np.divmod(np.arange(servers * len(arcs)), len(arcs))
    time, nodes = len(source), servers + 1
    ones = np.ones(time)
    kept = coo_array(
        (
            np.concatenate([ones, -ones]),
            (
                np.concatenate([source * nodes + head[arc], source * nodes + tail[arc]]),
                np.tile(np.arange(time), 2),
            ),
        ),
        shape=(servers * nodes, time + 1),
    ).tocsr()
    carried = coo_array(
        (
            np.concatenate([ones, -capacity]),
            (
                np.concatenate([arc, np.arange(len(arcs))]),
                np.concatenate([np.arange(time), np.full(len(arcs), time)]),
            ),
        ),
        shape=(len(arcs), time + 1),
    )
    due = np.zeros((servers, nodes))
    due[:, :servers] = owed / owed.sum()
    others = ~np.eye(servers, nodes, dtype=bool).ravel()
    solution = linprog(
        np.append(np.zeros(time), 1.0),
        A_ub=carried,
        b_ub=np.zeros(len(arcs)),
        A_eq=kept[others],
        b_eq=due.ravel()[others],
        method="highs",
    )
    assert solution.success, solution.message
    return float(solution.fun) * float(owed.sum()) / circuit_rate(wired)


def random_case(seed: int) -> tuple[str, Situation]:
    """Return a region of 4 to 16 servers and a demand, and a text that names them.

    Optical NICs are 4 fewer to 3 more than a full mesh needs, at least 3; electrical NICs 0 to 2.
    """
    draw = np.random.RandomState(seed)
    servers = draw.randint(4, 17)
    optical = min(16, max(3, servers - 1 + draw.randint(-4, 4)))
    electrical, shape = draw.randint(3), ("even", *SHAPES)[draw.randint(4)]
    if shape == "even":
        owed = 1e9 * (1.0 + 0.1 * draw.random_sample((servers, servers)))
        np.fill_diagonal(owed, 0.0)
    else:
        owed = demand_matrix(servers, seed, shape)
    if not owed.any():
        owed[0, 1] = 1e9
    wired = forwarding_fabric(servers, optical, electrical)
    text = f"{servers} servers of {optical} + {electrical} NICs, {shape}, seed {seed}"
    return text, (wired, DemandMatrix(wired.servers, owed), even_circuits(wired))


def training_tokens(step: int, layer: int) -> Array:
    """Return tokens between 8 servers of two experts each, in the examples' training."""
    counts = np.load(TRACE)["counts"][step, layer].astype(np.float64)
    owed: Array = counts.reshape(8, 8, 2).sum(axis=2)
    np.fill_diagonal(owed, 0.0)
    return owed * 1e6


@pytest.mark.parametrize(("optical", "electrical"), [(7, 1), (6, 2), (4, 4), (3, 1), (7, 0)])
@pytest.mark.parametrize(("step", "layer"), [(10, 0), (700, 2)])
def test_trees_over_even_circuits_are_as_good_as_any_paths(
    step: int, layer: int, optical: int, electrical: int
) -> None:
    wired, owed = fabric(8, optical, electrical), training_tokens(step, layer)
    lit = even_circuits(wired)
    best_s = any_paths_s(wired, lit, owed)
    split = relay_linear_program(wired, wired.servers, lit).split(owed, exact=True)
    assert split.seconds == pytest.approx(best_s, rel=1e-3)


@given(st.integers(3, 7), st.integers(1, 2), st.integers(0, 10_000), st.sampled_from(SHAPES))
def test_trees_over_a_full_mesh_are_as_good_as_any_paths(
    servers: int, electrical: int, seed: int, shape: str
) -> None:
    wired, owed = fabric(servers, servers - 1, electrical), demand_matrix(servers, seed, shape)
    if not owed.any():
        owed[0, 1] = 1e9
    lit = even_circuits(wired)
    best_s = any_paths_s(wired, lit, owed)
    demand = DemandMatrix(wired.servers, owed)
    assert predicted_s(wired, lit, demand) == pytest.approx(best_s, rel=5e-3)


def seconds_late(situation: Situation) -> float:
    """Return how much later a split ends than over any paths, relative to these."""
    wired, demand, lit = situation
    late = predicted_s(wired, lit, demand) / any_paths_s(wired, lit, demand.array) - 1
    assert late >= -1e-6
    return late


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(12), id="12"),
        pytest.param(
            range(12, 1000), id="988", marks=[pytest.mark.nightly, pytest.mark.timeout(900)]
        ),
    ],
)
def test_splits_end_within_a_hundredth_of_any_paths(seeds: range) -> None:
    """With fewer NICs than a mesh, as many, and more, which are parallel circuits."""
    late = {text: seconds_late(situation) for text, situation in map(random_case, seeds)}
    print(f"{len(late)} demands: {max(late.values()):.2%} late at most")
    assert not {text: ratio for text, ratio in late.items() if ratio > 0.01}


@pytest.mark.parametrize("optical", [4, 5, 7, 8])
def test_splits_over_parallel_circuits_of_four_servers_are_as_good_as_any_paths(
    optical: int,
) -> None:
    wired = fabric(4, optical, 1)
    for shape in SHAPES:
        drawn = [demand_matrix(4, seed, shape) for seed in range(10)]
        owing = [owed for owed in drawn if owed.any()]
        assert owing, shape
        for owed in owing:
            demand = DemandMatrix(wired.servers, owed)
            late = seconds_late((wired, demand, even_circuits(wired)))
            assert late <= 0.01, f"{shape}: {owed}"


def test_paths_that_join_the_eps_and_circuits_would_help_in_a_ring() -> None:
    """Six servers of two optical NICs, where most pairs have no circuit."""
    wired, owed = fabric(6, 2, 1), demand_matrix(6, 856, "sparse")
    demand = DemandMatrix(wired.servers, owed)
    assert seconds_late((wired, demand, even_circuits(wired))) == pytest.approx(0.138, abs=0.001)


@pytest.mark.parametrize(("optical", "electrical"), [(7, 1), (6, 2), (3, 1), (7, 0)])
def test_no_split_that_ends_as_soon_forwards_less(optical: int, electrical: int) -> None:
    wired = fabric(8, optical, electrical)
    demand, lit = DemandMatrix(wired.servers, training_tokens(700, 2)), even_circuits(wired)
    optimum_s, fewest = least(wired, lit, demand)
    lp = relay_linear_program(wired, wired.servers, lit)
    for exact, tolerance in ((True, 1e-5), (False, 2e-3)):
        split = lp.split(demand.array, exact=exact)
        planned = flows(wired, lit, shares(demand, split))
        forwarded = sum(
            flow.bytes * (len(route(wired, lit, flow)) / 2 - 1)
            for flow in planned
            if flow.path[0] == "r"
        )
        assert split.seconds == pytest.approx(optimum_s, rel=tolerance)
        assert 0 < forwarded <= fewest * (1 + tolerance)


def test_two_servers_forward_what_a_third_needs() -> None:
    """A mesh of 4 servers and no EPS: one pair owes all, over its circuit and two others."""
    wired = fabric(4, 3, 0)
    rows = np.zeros((4, 4))
    rows[0, 1] = 3e9
    demand, lit = DemandMatrix(wired.servers, rows), even_circuits(wired)
    share = multihop_split(wired, demand, lit).shares[0]
    assert share.light_bytes == pytest.approx(1e9)
    assert {root: round(size) for root, size in share.forwarded} == {"s2": 1e9, "s3": 1e9}


def test_nothing_is_forwarded_where_circuits_and_the_eps_reach_the_bound() -> None:
    wired = fabric(4, 3, 1)
    demand = DemandMatrix(wired.servers, np.ones((4, 4)) * 1e9)
    lit = even_circuits(wired)
    split = multihop_split(wired, demand, lit)
    assert split.forwarded_bytes == 0
    assert split == POLICIES["spill"].split(wired, demand, lit)


def test_servers_that_do_not_forward_spill() -> None:
    wired = replace(fabric(4, 3, 1), forwarding=False)
    rows = np.zeros((4, 4))
    rows[0, 1] = 3e9
    demand, lit = DemandMatrix(wired.servers, rows), even_circuits(wired)
    split = multihop_split(wired, demand, lit)
    assert split.forwarded_bytes == 0
    assert split == POLICIES["spill"].split(wired, demand, lit)


def test_all_parallel_circuits_forward() -> None:
    """Three servers in a row, two circuits between neighbours: one lane for each."""
    wired = fabric(3, 4, 0)
    lit = CircuitSet.of(["s0/o0~s1/o0", "s0/o1~s1/o1", "s1/o2~s2/o0", "s1/o3~s2/o1"])
    demand = DemandMatrix(wired.servers, [[0.0, 0.0, 1e9], [0.0] * 3, [0.0] * 3])
    (share,) = multihop_split(wired, demand, lit)
    assert dict(share.forwarded) == pytest.approx({"s1": 1e9})
    (by_lane,) = share.forwarded_by_lane
    assert by_lane == pytest.approx((0.5e9, 0.5e9))
    assert Share.from_json(json.loads(json.dumps(share.to_json()))) == share
    assert Share.joined([share, share]) == share.of_size(2 * share.bytes)
    assert [flow.path for flow in flows(wired, lit, [share])] == ["r1", "r1.1"]
    assert predicted_s(wired, lit, demand) == pytest.approx(0.5e9 / circuit_rate(wired))


def test_idle_circuits_begin_and_end_a_detour() -> None:
    """Each server has a second circuit to one other. One pair owes all, over its single circuit,
    both servers with one circuit to one end and two to the other, and a detour over both.
    """
    wired, lit = fabric(4, 4, 0), even_circuits(fabric(4, 4, 0))
    counts = circuit_matrix(wired.servers, lit)
    receiver, relay = (n for n in range(1, 4) if counts[0, n] == 1)
    assert counts[receiver, relay] == 2
    rows = np.zeros((4, 4))
    rows[0, receiver] = 4e9
    demand = DemandMatrix(wired.servers, rows)
    sent = flows(wired, lit, multihop_split(wired, demand, lit))
    lengths = sorted(len(route(wired, lit, flow)) // 2 for flow in sent)
    assert lengths == [1, 2, 2, 3]
    assert predicted_s(wired, lit, demand) == pytest.approx(1e9 / circuit_rate(wired))


def test_servers_that_nothing_joins_are_never_served() -> None:
    wired = fabric(4, 1, 0)
    lit = CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"])
    demand = DemandMatrix(wired.servers, np.ones((4, 4)) * 1e9)
    split = relay_linear_program(wired, wired.servers, lit).split(off_diagonal(demand))
    assert split.seconds == inf
    assert split.eps[0, 2] == 1e9
    assert split.light[0, 1] == 1e9
    assert Plan(wired, wired.regions[0], demand, POLICIES["multihop"], lit).predicted_s == inf


def test_regions_are_split_apart() -> None:
    """A demand of two regions: their circuits and trees have nothing in common."""
    parts = [tuple(f"s{4 * r + i}" for i in range(4)) for r in range(2)]
    regions = tuple(Region(f"r{r}", r, parts[r], Ocs(f"ocs{r}", 12)) for r in range(2))
    wired = Fabric("f", regions, 8, 3, 1, 100e9, Eps(8), forwarding=True)
    lit = CircuitSet(
        frozenset(
            circuit
            for region in regions
            for circuit in EVEN.circuits(
                wired, region, DemandMatrix(region.servers, none(region)), CircuitSet()
            )
        )
    )
    owed = demand_matrix(4, 1, "pareto")
    single = DemandMatrix(parts[0], owed)
    both = DemandMatrix.block_diagonal([single, DemandMatrix(parts[1], owed)])
    whole, part = multihop_split(wired, both, lit), multihop_split(wired, single, lit)
    assert part.forwarded_bytes > 0
    assert whole.forwarded_bytes == pytest.approx(2 * part.forwarded_bytes)


def test_plan_json_names_the_roots_and_bytes_of_forwarded_bytes() -> None:
    wired = fabric(4, 3, 0)
    rows = np.zeros((4, 4))
    rows[0, 1] = 3e9
    demand = DemandMatrix(wired.servers, rows)
    planned = plan(wired, wired.regions[0], demand, POLICIES["multihop"], CircuitSet())
    (share,) = planned.to_json()["split"]
    assert share["forwarded"] == pytest.approx({"s2": 1e9, "s3": 1e9})
    assert planned.predicted_s == pytest.approx(planned.bound_s)
