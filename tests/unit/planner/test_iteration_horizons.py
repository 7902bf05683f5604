"""The all-to-alls that follow a request for circuits."""

import pytest

from moefabric.core.demand import DemandMatrix
from moefabric.planner.horizon import Horizon
from moefabric.planner.iteration_horizons import IterationHorizons
from moefabric.workload.iterations.iteration import Collective, Reconfigure
from moefabric.workload.iterations.tasks import Task

NOTHING = DemandMatrix(("s0", "s1"), [[0.0, 0.0], [0.0, 0.0]])


def tasks(pattern: str, region: str = "r0") -> list[Task]:
    """Return tasks by their letters: a digit requests circuits for a layer, `a` is an all-to-all.

    An all-to-all belongs to the layer of the request before it.
    """
    layer, found = 0, list[Task]()
    for letter in pattern:
        if letter == "a":
            found.append(Task((region,), 0, Collective("dispatch", "forward", layer, NOTHING), ()))
        else:
            layer = int(letter)
            found.append(Task((region,), 0, Reconfigure("forward", layer, NOTHING), ()))
    return found


@pytest.mark.parametrize(
    ("pattern", "number", "later", "expected"),
    [
        pytest.param("0aa1aaaa0aa", 0, 0, Horizon(2, 8), id="first-layer"),
        pytest.param("0aa1aaaa0aa", 3, 0, Horizon(4, 6), id="last-layer-forward-and-backward"),
        pytest.param("0aa1aaaa0aa", 8, 0, Horizon(2, 2), id="end-of-the-job"),
        pytest.param("0aa1aaaa0aa", 8, 2, Horizon(4, 18), id="first-layer-of-the-next-iteration"),
        pytest.param("0aa1aaaa0aa", 0, 2, Horizon(2, 24), id="later-iterations-are-left"),
        pytest.param("0aaaa", 0, 3, Horizon(16, 16), id="a-single-layer-keeps-its-demand"),
        pytest.param("0a0a1aaaa0aa", 0, 0, Horizon(2, 8), id="a-second-request-for-the-layer"),
    ],
)
def test_horizon_counts_all_to_alls(
    pattern: str, number: int, later: int, expected: Horizon
) -> None:
    assert IterationHorizons(tasks(pattern)).horizon(number, later) == expected


def test_horizon_counts_those_of_the_tasks_own_regions() -> None:
    both = [*tasks("0aa1aa"), *tasks("0aaaa1a", "r1")]
    assert IterationHorizons(both).horizon(0, 0) == Horizon(2, 4)
    assert IterationHorizons(both).horizon(6, 0) == Horizon(4, 5)
