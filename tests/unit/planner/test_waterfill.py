"""Water-filling: links of the EPS, and ends of demands that are computed by hand."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.flows import Share
from moefabric.core.nic import Nic
from moefabric.planner.waterfill import (
    EpsLinks,
    completion_s,
    matrix_split,
    off_diagonal,
    optimal_split,
    pair_rates,
)
from tests.support.fabrics import fabric

SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in a second."""
PODS = EpsLinks(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 1]), np.array([5.0, 6.0]))


def test_eps_of_one_leaf_has_no_uplinks() -> None:
    links = EpsLinks.one_leaf(np.array([1.0, 2.0]))
    assert links.budget.tolist() == [1, 2, 1, 2]
    assert links.loads(np.array([[0.0, 3.0], [4.0, 0.0]])).tolist() == [3, 4, 4, 3]


def test_loads_of_uplinks_are_the_bytes_between_pods() -> None:
    sent = np.array([[0.0, 1, 10, 100], [0, 0, 0, 1000], [0, 7, 0, 3], [0, 0, 5, 0]])
    sending, receiving = [111, 1000, 10, 5], [0, 8, 15, 1103]
    assert PODS.loads(sent).tolist() == [*sending, *receiving, 1110, 7, 7, 1110]
    assert PODS.budget.tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 5, 6]


def test_eps_links_of_a_fabric_have_the_rates_of_its_nics_and_uplinks() -> None:
    """Leaves of two servers with two NICs each have uplinks to two spines, half as fast."""
    wired = replace(fabric(1, 2, eps=Eps(2, 2, 2.0)), own_rates_bps=(("s1", 25e9),))
    wired = wired.without_nics([Nic.parse("s2/e0")])
    links = EpsLinks.of(wired, ("s0", "s1", "s2", "s3"))
    assert links.nics / SECOND == pytest.approx(np.array([2.0, 0.5, 1.0, 2.0]))
    assert links.pod.tolist() == [0, 0, 1, 1]
    assert links.uplinks / SECOND == pytest.approx(np.array([2.0, 2.0]))
    assert EpsLinks.of(fabric(1, 2), ("s1", "s2")).uplinks.size == 0


@pytest.mark.parametrize(
    ("owed", "circuits", "seconds"),
    [
        pytest.param({(0, 1): 6}, {}, 6, id="eps-alone"),
        pytest.param({(0, 1): 6}, {(0, 1): 1}, 3, id="as-much-over-a-circuit"),
        pytest.param({(0, 1): 6}, {(0, 1): 2}, 2, id="two-circuits"),
        # The NIC has 1 + 5 - T and 6 - T to send, until T = (1 + 5) / (1 + 1).
        pytest.param({(0, 1): 1, (0, 2): 5}, {(0, 2): 1}, 3, id="one-pair-spills"),
        # By T = 2.5, the first circuit has carried its byte, and 6 = T + T + 1.
        pytest.param(
            {(0, 1): 1, (0, 2): 5}, {(0, 1): 1, (0, 2): 1}, 2.5, id="one-circuit-is-through-early"
        ),
        pytest.param({(0, 2): 4, (1, 2): 4}, {}, 8, id="two-senders"),
        pytest.param({}, {(0, 1): 1}, 0, id="no-demand"),
    ],
)
def test_circuits_and_the_eps_end_together(
    owed: dict[tuple[int, int], float], circuits: dict[tuple[int, int], float], seconds: float
) -> None:
    """NICs and circuits carry a byte a second."""
    due, light = np.zeros((3, 3)), np.zeros((3, 3))
    for matrix, entries in ((due, owed), (light, circuits)):
        for cell, value in entries.items():
            matrix[cell] = value
    links = EpsLinks.one_leaf(np.ones(3))
    assert completion_s(due, light, links) == pytest.approx(seconds)
    assert completion_s(due.T, light.T, links) == pytest.approx(seconds)


def test_server_without_nics_delays_no_demand_of_others() -> None:
    owed, light = np.zeros((3, 3)), np.zeros((3, 3))
    owed[0, 1], light[0, 1] = 6.0, 2.0
    assert completion_s(owed, light, EpsLinks.one_leaf(np.zeros(3))) == 3.0


def test_uplinks_and_extra_bytes_delay_the_end() -> None:
    """Four bytes from each server of a pod to the other pod; NICs carry a byte a second."""
    owed = np.zeros((4, 4))
    owed[0, 2] = owed[1, 3] = 4.0
    links = EpsLinks(np.ones(4), np.array([0, 0, 1, 1]), np.full(2, 0.5))
    none = np.zeros((4, 4))
    assert completion_s(owed, none, links) == pytest.approx(8 / 0.5)
    assert completion_s(owed, none, EpsLinks.one_leaf(np.ones(4))) == pytest.approx(4)
    extra = np.array([0.0, 3, 0, 0, 0, 0, 0, 0])
    assert completion_s(owed, none, EpsLinks.one_leaf(np.ones(4)), extra) == pytest.approx(7)


def test_demand_without_circuits_and_eps_never_ends() -> None:
    owed = np.array([[0.0, 1.0], [0.0, 0.0]])
    assert completion_s(owed, np.zeros((2, 2)), EpsLinks.one_leaf(np.zeros(2))) == inf


def test_circuit_of_a_pair_has_the_rate_of_the_slower_nic() -> None:
    assert pair_rates(np.array([1.0, 2.0]), 2).tolist() == [[1, 1], [1, 2]]
    assert pair_rates(3.0, 2).tolist() == [[3, 3], [3, 3]]


def test_bytes_that_stay_in_a_server_need_no_network() -> None:
    assert off_diagonal(DemandMatrix(("a", "b"), [[5, 1], [2, 5]])).tolist() == [[0, 1], [2, 0]]


def test_only_the_excess_of_circuits_goes_over_the_eps() -> None:
    """The circuit and the NIC of s0 carry 6 + 1 bytes in 3.5 s; the NIC of s2 is faster."""
    wired, lit = fabric(1, 1), CircuitSet.of(["s0/o0~s1/o0"])
    owed = np.zeros((4, 4))
    owed[0, 1], owed[0, 3], owed[2, 1], owed[1, 0] = 6, 1, 0.25, 2
    split = optimal_split(wired, DemandMatrix(wired.servers, owed * SECOND), lit)
    assert [(s.src, s.dst, s.light_bytes / SECOND, s.eps_bytes / SECOND) for s in split] == [
        ("s0", "s1", pytest.approx(3.5), pytest.approx(2.5)),
        ("s0", "s3", 0.0, pytest.approx(1.0)),
        ("s1", "s0", pytest.approx(2.0), 0.0),
        ("s2", "s1", 0.0, pytest.approx(0.25)),
    ]


def test_split_has_a_share_for_each_pair_that_sends() -> None:
    light, eps = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 2.0], [3.0, 0.0]])
    shares = matrix_split(("a", "b"), light, eps).shares
    assert shares == (Share("a", "b", 1.0, 2.0), Share("b", "a", 0.0, 3.0))
