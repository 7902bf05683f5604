"""Orders of an all-to-all: phases add up to the demand, and some reach the bound."""

import json
from itertools import pairwise

import numpy as np
import pytest
from moefabric_studies.systems.aurora.orders import (
    Aurora,
    AuroraGreedy,
    RandomOrder,
    RingShift,
    ShortestFirst,
    birkhoff,
    padded_demand,
    port_bytes,
)
from numpy.typing import NDArray

from moefabric.config.plugins import COLLECTIVE_ORDERS, load_plugin, plugin_names
from moefabric.core.demand import DemandMatrix, Placement
from moefabric.workload.iterations.iteration import PAUSE, Collective, Compute, Operation
from moefabric.workload.models.model import CountExchange
from moefabric.workload.placement.collective_order import (
    CollectiveOrder,
    ordered_operations,
    phase_demands,
)
from tests.support.paths import EXAMPLES

Matrix = NDArray[np.float64]


def mixnet_tokens() -> Matrix:
    tokens = json.loads((EXAMPLES / "data/gating-8x8.json").read_text())
    return without_diagonal(np.array(tokens["num_global_tokens_per_expert"], float))


def random_demand(seed: int, servers: int = 6, idle: float = 0.3) -> Matrix:
    rng = np.random.default_rng(seed)
    demand = rng.lognormal(0.0, 1.5, (servers, servers)) * (rng.random((servers, servers)) > idle)
    return without_diagonal(demand)


def without_diagonal(matrix: Matrix) -> Matrix:
    return matrix * (1 - np.eye(len(matrix)))


def named(demand: Matrix) -> DemandMatrix:
    return DemandMatrix([f"s{number}" for number in range(len(demand))], demand)


def makespan(order: CollectiveOrder, demand: Matrix) -> float:
    """Return the seconds of all phases on ports of one byte a second."""
    return sum(port_bytes(phase) for phase in order.phases(demand))


DEMANDS = [mixnet_tokens(), *(random_demand(seed) for seed in range(5)), random_demand(7, 2, 0.0)]


@pytest.mark.parametrize("name", plugin_names(COLLECTIVE_ORDERS))
@pytest.mark.parametrize("demand", [*DEMANDS, np.zeros((3, 3))])
def test_phases_add_up_to_the_demand(name: str, demand: Matrix) -> None:
    order: CollectiveOrder = load_plugin(COLLECTIVE_ORDERS, name, CollectiveOrder)
    phases = phase_demands(named(demand), order)
    np.testing.assert_allclose(sum(phase.array for phase in phases), demand, atol=1e-6)
    assert makespan(order, demand) >= port_bytes(demand) * (1 - 1e-9)


def test_ranks_share_the_bytes_of_a_pair_in_each_phase_as_in_all() -> None:
    tokens, placement = mixnet_tokens(), Placement(("s0", "s1", "s2", "s3"), 8, 8)
    sent = placement.by_destination(tokens)
    by_rank = placement.by_rank(tokens, sent)
    demand = DemandMatrix(placement.servers, placement.by_source(sent), by_rank)
    phases = phase_demands(demand, Aurora())
    assert len(phases) > 1
    for phase in phases:
        for src, dst, _ in phase.pairs():
            assert phase.rank_parts[src, dst] == pytest.approx(demand.rank_parts[src, dst])


@pytest.mark.parametrize("demand", DEMANDS)
def test_aurora_takes_no_longer_than_the_bytes_of_the_busiest_port(demand: Matrix) -> None:
    assert makespan(Aurora(), demand) == pytest.approx(port_bytes(demand))
    assert makespan(Aurora(shortest=0.0), demand) == pytest.approx(port_bytes(demand))


@pytest.mark.parametrize("demand", DEMANDS)
def test_no_port_has_two_transfers_in_a_phase_of_aurora(demand: Matrix) -> None:
    greedy = AuroraGreedy(shortest=0.0).phases(demand)
    for phase in [*birkhoff(demand), *greedy]:
        assert max((phase > 0).sum(axis=0).max(), (phase > 0).sum(axis=1).max()) <= 1


@pytest.mark.parametrize("demand", DEMANDS)
def test_decomposition_has_at_most_as_many_permutations_as_cells(demand: Matrix) -> None:
    assert len(list(birkhoff(demand))) <= len(demand) ** 2 - 2 * len(demand) + 2


@pytest.mark.parametrize("demand", DEMANDS)
def test_padded_demand_has_equal_rows_and_columns(demand: Matrix) -> None:
    padded = padded_demand(demand)
    assert (padded >= demand).all()
    np.testing.assert_allclose(padded.sum(axis=0), port_bytes(demand))
    np.testing.assert_allclose(padded.sum(axis=1), port_bytes(demand))


def test_greedy_order_interrupts_no_transfer() -> None:
    demand = mixnet_tokens()
    busy = [phase > 0 for phase in AuroraGreedy(shortest=0.0).phases(demand)]
    for cell in np.ndindex(demand.shape):
        starts = sum(bool(now[cell] and not before[cell]) for before, now in pairwise(busy))
        assert starts + bool(busy[0][cell]) <= 1


def test_serial_orders_take_longer_than_the_bound() -> None:
    demand, bound = mixnet_tokens(), port_bytes(mixnet_tokens())
    assert makespan(ShortestFirst(), demand) / bound == pytest.approx(1.52, abs=0.01)
    assert makespan(AuroraGreedy(), demand) / bound < 1.14
    assert makespan(RandomOrder(), demand) / bound > 1.05
    assert makespan(RandomOrder(seed=2), demand) != makespan(RandomOrder(), demand)


def test_senders_of_equal_demands_on_a_ring_never_meet() -> None:
    even = without_diagonal(np.ones((5, 5)))
    assert makespan(RingShift(), even) == pytest.approx(port_bytes(even))
    assert len(RingShift().phases(even)) == 4
    assert makespan(ShortestFirst(), even) > 1.3 * port_bytes(even)


def test_short_phases_are_joined_and_take_no_longer() -> None:
    demand = mixnet_tokens()
    few, many = ShortestFirst(shortest=0.1), ShortestFirst(shortest=0.0)
    assert len(few.phases(demand)) < len(many.phases(demand))
    assert min(map(port_bytes, few.phases(demand))) >= 0.1 * port_bytes(demand)
    assert makespan(few, demand) <= makespan(many, demand)


def test_all_to_all_becomes_phases_with_pauses_between_them() -> None:
    demand = named(mixnet_tokens())
    counts = CountExchange(7, 64, 1e-6)
    whole = Collective("dispatch", "forward", 3, demand, counts=counts)
    order = Aurora(barrier_s=0.25, solve_s=2.0, shortest=0.2)
    first, *others = list(ordered_operations([whole], order))
    assert first == Compute(PAUSE, "forward", 3, (2.0,) * 8)
    phases = [one for one in others if isinstance(one, Collective)]
    pauses = [one for one in others if isinstance(one, Compute)]
    assert {(one.kind, one.slowest_s) for one in pauses} == {(PAUSE, 0.25)}
    assert len(pauses) == len(phases) - 1
    assert [(one.phase, one.phases) for one in phases] == [
        (number, len(phases)) for number in range(len(phases))
    ]
    assert [one.pause_s for one in phases] == [2.0, *(0.25,) * len(pauses)]
    assert [one.counts for one in phases] == [counts, *(None,) * len(pauses)], "once"
    assert not any(one.is_forward_dispatch for one in phases)


def test_other_operations_stay_as_they_are() -> None:
    operations: list[Operation] = [
        Compute("expert", "forward", 0, (1.0, 1.0)),
        Collective("tensor", "forward", 0, named(np.ones((2, 2)))),
        Collective("dispatch", "forward", 0, named(np.zeros((2, 2)))),
    ]
    assert list(ordered_operations(operations, ShortestFirst())) == operations


def test_order_that_loses_bytes_is_refused() -> None:
    class Half(Aurora):
        def phases(self, demand: Matrix) -> list[Matrix]:
            return [demand / 2]

    with pytest.raises(ValueError, match="aurora: the sum of the phases is not the demand"):
        phase_demands(named(mixnet_tokens()), Half())
